"""What a notebook can read of the profiles: the common settings and sections, not the whole file."""

import ast
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lt_lib._yaml import read_mapping


def settings_read(profile: Path, notebook: str, code: Sequence[str], pages: Iterable[str]) -> str:
    """What `notebook` can read of `profile`, and of profiles that it loads by name, as canonical JSON.

    That is the common settings, its own section and those of pages that its code names; not comments, order
    or spelling of the YAML. A section of no page stays in, and a file that is no mapping, or that has a name
    twice, stands here as it is: so a mistake makes some key new, and the library is asked, which refuses it.

    Args:
        profile: the file; others lie beside it.
        notebook: stem of the notebook.
        code: sources of its code cells and of the helpers that it imports.
        pages: stems of all notebooks of the book.
    """
    nodes = [node for source in code for node in ast.walk(ast.parse(source))]
    unread = set(pages) - {node.value for node in nodes if _is_text(node)} - {notebook}
    loaded = {name for node in nodes for name in _loaded(node)}
    others = [path for path in sorted(profile.parent.glob("*.yaml")) if path.stem in loaded - {profile.stem}]
    return json.dumps([[path.stem, _visible(path, unread)] for path in (profile, *others)])


def _visible(profile: Path, unread: set[str]) -> str:
    """The settings of a file without the sections of `unread`, in canonical JSON."""
    content = profile.read_bytes()
    try:
        entries = dict(_entries(profile, content))
        sections = entries.pop("notebooks", None) or {}
        read = {name: section for name, section in sections.items() if name not in unread}
        return json.dumps([entries, read], sort_keys=True, default=repr)
    except (ValueError, TypeError, AttributeError):
        return content.hex()


@cache
def _entries(profile: Path, content: bytes) -> dict[str, Any]:
    """What a file with this content holds, parsed once for all notebooks."""
    return read_mapping(profile)


def _loaded(node: ast.AST) -> list[Any]:
    """[the profile that a call of `profiles.load` names by a text], else []."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load"):
        return []
    module = node.func.value
    given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "name")]
    if not (isinstance(module, ast.Name) and module.id == "profiles"):
        return []
    return [value.value for value in given if isinstance(value, ast.Constant)]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
