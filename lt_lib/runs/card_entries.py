"""What stands in a model card, read back and checked before anything is built from it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMAT = 1
HERE = "Load a folder that `save_card` wrote."
_MOST = 8192  # pixels a side, as of image files; channels


def read_entries(path: Path) -> dict[str, Any]:
    """Return the entries of the card at `path`, each of the kind that `save_card` writes.

    Raises:
        FileNotFoundError: there is no card.
        ValueError: it is damaged or newer than this library; the entry is named.
    """
    if not path.is_file():
        raise FileNotFoundError(f"`{path.parent}` must hold a `{path.name}`; found none. {HERE}")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` must be a card in JSON; found a damaged one ({error}). {HERE}") from error
    known = ("format", *_ALLOWED)
    lacking = [n for n in known if n not in entries] if isinstance(entries, dict) else list(known)
    if lacking:
        raise ValueError(f"`{path}` must be a card; its entry `{lacking[0]}` is missing. {HERE}")
    if entries["format"] != FORMAT:
        raise ValueError(
            f"`{path}` is of format {entries['format']!r}, and this library reads {FORMAT}. Update `lt_lib`."
        )
    for name, allowed in _ALLOWED.items():
        if not allowed(entries[name], entries):
            raise ValueError(
                f"`{path}` must be a card; its entry `{name}` cannot be {str(entries[name])[:60]}. {HERE}"
            )
    found: dict[str, Any] = entries
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST


def _text(value: Any, _: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _names(value: Any, _: Any) -> bool:
    return (
        isinstance(value, list) and all(isinstance(n, str) for n in value) and len(set(value)) == len(value)
    )


def _sides(value: Any, _: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole, value))


def _scale(value: Any, entries: dict[str, Any]) -> bool:
    if not isinstance(value, dict) or not {"mean", "std"}.issubset(value):
        return False
    both = [value["mean"], value["std"]]
    if any(not isinstance(one, list) or len(one) != entries["channels"] for one in both):
        return False
    good = all(isinstance(v, int | float) and math.isfinite(v) for one in both for v in one)
    return good and min(value["std"]) > 0


def _network(value: Any, _: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and isinstance(value.get("net"), dict) and "edited_head" in value
    )


_ALLOWED: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "classes": _names,
    "channels": lambda value, _: _whole(value),
    "size": _sides,
    "normalise": _scale,
    "network": _network,
    "weights": _text,
    "sha256": _text,
}
