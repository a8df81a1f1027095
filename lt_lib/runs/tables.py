"""A run's history as CSV: one line a measurement, one column a number, exact to the last bit."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

_ENTRY = re.compile(r"(.+)_(\d+)$")


def text(rows: list[dict[str, Any]]) -> str:
    """Return the rows as CSV; a list entry becomes the columns `name_0`, `name_1`, ...; None becomes nan."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    widths = {name: len(rows[0][name]) if isinstance(rows[0].get(name), list) else None for name in names}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([c for name in names for c in _columns(name, widths[name])])
    for row in rows:
        values = (row[name] if widths[name] is not None else [row[name]] for name in names)
        writer.writerow(["nan" if v is None else repr(v) for entries in values for v in entries])
    return out.getvalue()


def read(path: Path) -> dict[str, np.ndarray]:
    """Read `text`'s CSV: arrays (E,) or, for columns `name_0` and on, (E, C); float64, `epoch` int64."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    values = np.array([[float(cell) for cell in line] for line in lines])
    groups: dict[str, list[int]] = {}
    vectors = set()
    for position, column in enumerate(header):
        match = _ENTRY.match(column)
        name = match[1] if match else column
        groups.setdefault(name, []).append(position)
        if match:
            vectors.add(name)
    history = {name: values[:, at] if name in vectors else values[:, at[0]] for name, at in groups.items()}
    history["epoch"] = history["epoch"].astype(np.int64)
    return history


def _columns(name: str, width: int | None) -> list[str]:
    return [name] if width is None else [f"{name}_{c}" for c in range(width)]
