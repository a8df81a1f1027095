"""Sphinx extension for the API page: in docstrings, `|x|` is an absolute value, not a substitution."""

import re

from sphinx.application import Sphinx

OUTSIDE_LITERALS = re.compile(r"(``.*?``|`[^`]*`)|\|")


def escape_bars(line: str) -> str:
    """Escape the bars of absolute values, which reStructuredText takes for substitutions; literals stay."""
    return OUTSIDE_LITERALS.sub(lambda match: match[1] or r"\|", line)


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [escape_bars(line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", _process, priority=400)  # before napoleon, which writes mark-up
    return {"parallel_read_safe": True, "parallel_write_safe": True}
