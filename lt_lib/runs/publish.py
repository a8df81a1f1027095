"""What a notebook hands on: its numbers as JSON, the data behind each figure as CSV."""

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lt_lib._home import project_root
from lt_lib.runs.files import explained, replace

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def build_folder(profile: str | None = None) -> Path:
    """Return `build/<profile>` of the project; by default LT_BUILD, else that of LT_PROFILE or `digits`."""
    if profile is None and (named := os.environ.get("LT_BUILD")):
        return Path(named).expanduser().absolute()
    return project_root() / "build" / _checked(profile or os.environ.get("LT_PROFILE") or "digits", "profile")


def publish(notebook: str, numbers: Mapping[str, Any], profile: str | None = None) -> Path:
    """Write a notebook's numbers to `build/<profile>/published/<notebook>.json`, and return the path.

    NaN and infinite numbers become null. Tests state what the numbers must satisfy.

    Raises:
        ValueError: a name that is no file name, or a value that JSON cannot hold.
        StoreError: the folder cannot be written.
    """
    if not isinstance(numbers, Mapping):
        raise ValueError(f"`numbers` must be a mapping from names to numbers; found {numbers!r}.")
    path = build_folder(profile) / "published" / f"{_checked(notebook, 'notebook')}.json"
    content = json.dumps(_plain(dict(numbers)), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    with explained(path.parent, built=True):
        replace(path, content.encode(), sync=False)
    return path


def save_figure_data(notebook: str, figure: str, /, *, profile: str | None = None, **columns: Any) -> Path:
    """Write a figure's data to `build/<profile>/figures/<notebook>/<figure>.csv`, and return the path.

    Args:
        notebook: stem of the notebook.
        figure: name of the figure.
        profile: as in `publish`.
        columns: numbers or texts, one column each; shorter ones are filled with empty cells.

    Raises:
        ValueError: no column, a column that is not one-dimensional, or a name that is no file name.
        StoreError: the folder cannot be written.
    """
    if not columns:
        raise ValueError(
            "`columns` must hold at least one column; found none. Pass them by name, such as `steps=steps`."
        )
    folder = build_folder(profile) / "figures" / _checked(notebook, "notebook")
    cells = {name: _column(name, values) for name, values in columns.items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(cells)
    for i in range(max(map(len, cells.values()))):
        writer.writerow([values[i] if i < len(values) else "" for values in cells.values()])
    path = folder / f"{_checked(figure, 'figure')}.csv"
    with explained(folder, built=True):
        replace(path, out.getvalue().encode(), sync=False)
    return path


def _checked(name: Any, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"`{what}` must be letters, digits, `_`, `-` and `.`; found {name!r}.")
    return str(name)


def _column(name: str, values: Any) -> list[Any]:
    array = np.atleast_1d(np.asarray(values.detach().cpu() if hasattr(values, "detach") else values))
    if array.ndim != 1:
        raise ValueError(
            f"Column `{name}` must be one-dimensional; found shape {array.shape}. Pass a column a series."
        )
    entries: list[Any] = array.tolist()
    return entries


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, str | int | bool):
        return value
    raise ValueError(f"`numbers` must hold numbers, texts, lists and mappings; found {type(value).__name__}.")
