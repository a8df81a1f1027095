"""What lies in a run store, read without PyTorch, whose import takes seconds.

Beside the runs the store keeps an index, one JSON line a run, so that ten thousand runs are listed without
opening as many files. It is a cache: a key says all that the line repeats, so a line cannot grow stale, one
that is missing or broken is made from the run's folder, and the file may be deleted at any time.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lt_lib._home import project_root
from lt_lib.runs._format import FORMAT, describe

KEY = re.compile(r"[0-9a-f]{32}")
FILES = ("config.json", "history.csv", "metrics.json", "weights.safetensors")
INDEX = ".index"


def store_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return `root`, or the folder that LT_RUNS names, or `runs` in the project."""
    return Path(root or os.environ.get("LT_RUNS") or project_root() / "runs").expanduser().absolute()


def run_keys(root: Path) -> list[str]:
    """Return the keys of all runs in the store, sorted; none if there is no such folder."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if KEY.fullmatch(entry.name) and entry.is_dir())


def stored_format(folder: Path) -> int | None:
    """Return the format in which a run was written, or None where its files do not tell."""
    try:
        found = json.loads((folder / "config.json").read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def is_newer(number: int) -> str:
    """Return what to say of a run in a format that this version does not know."""
    return f"written in format {number} by a newer lt_lib, while this one reads formats up to {FORMAT}"


def run_lines(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each run's key and its settings on one line, sorted by key; writes nothing."""
    known = _indexed(root)
    for key in run_keys(root):
        yield key, known.get(key) or _line(root / key)


def add_to_index(root: Path, key: str, config: Mapping[str, Any]) -> None:
    """Append a run to the index; where that fails, listing is slower and nothing else."""
    with contextlib.suppress(OSError), (root / INDEX).open("ab", buffering=0) as file:
        file.write(_record(key, describe(config)))


def index_content(root: Path) -> bytes:
    """Return an index of the runs that are there and can be read."""
    lines = ((key, _readable(root / key)) for key in run_keys(root))
    return b"".join(_record(key, line) for key, line in lines if line is not None)


def _record(key: str, line: str) -> bytes:
    # begins with a line break, too: a record that a kill has torn spoils no other
    return f"\n{json.dumps([key, FORMAT, line])}\n".encode()


def _indexed(root: Path) -> dict[str, str]:
    try:
        rows = (root / INDEX).read_bytes().split(b"\n")
    except OSError:
        return {}
    return dict(_records(rows))


def _records(rows: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for row in rows:
        with contextlib.suppress(ValueError, TypeError):
            key, number, line = json.loads(row)
            if number == FORMAT:
                yield str(key), str(line)


def _line(folder: Path) -> str:
    number = stored_format(folder)
    if number is not None and number > FORMAT:
        return is_newer(number)
    return _readable(folder) or "damaged"


def _readable(folder: Path) -> str | None:
    try:
        stored = json.loads((folder / "config.json").read_bytes())
        return describe(stored["config"]) if stored["format"] <= FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
