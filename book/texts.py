"""Names that come from data, such as class and file names, made safe for tables, pages and figures."""

import re

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_BREAKS = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]+")


def plain(name: object) -> str:
    """Return a name as Markdown that shows it letter by letter: no HTML, mathematics, link or column."""
    return _PUNCTUATION.sub(r"\\\1", _BREAKS.sub(" ", str(name)).strip())


def label(name: object) -> str:
    """Return a name as a text for Matplotlib, to which a pair of dollar signs is mathematics."""
    return _BREAKS.sub(" ", str(name)).strip().replace("$", r"\$")
