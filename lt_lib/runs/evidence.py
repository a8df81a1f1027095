"""One line a run: what was run, where, and what came out, in a small CSV that can be committed."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lt_lib.runs.files import explained, replace
from lt_lib.runs.machine import project_commit
from lt_lib.runs.publish import _checked, build_folder
from lt_lib.runs.results import Run

_TEST = ("balanced", "plain", "worst", "sigma", "rho", "per_class", "class_loss")
_TRAIN = ("balanced", "rho", "per_class", "class_loss")
_COLLAPSE = ("nc1", "nc2", "nc3")
_AGAIN = "Write the file again with `publish_runs`, or mend it."
_TEXTS = ("commit", "key", "data", "device", "torch")  # a commit may look like a number


def run_row(run: Run) -> dict[str, Any]:
    """Return a run as one flat row: configuration, seeds, device, seconds, and its final metrics.

    Lists and mappings stay what they are; accuracies are in 0..1, losses in nats.
    """
    config = run.config.to_dict()
    data = config.pop("data")
    row: dict[str, Any] = {"key": run.key, "data": data["name"], "imbalance": data["imbalance"]}
    row |= {"counts": run.config.split().counts.tolist(), **config}
    row |= {name: run.made.get(name) for name in ("device", "torch", "seconds")}
    row |= {f"test_{name}": run.metrics["test"][name] for name in _TEST}
    row |= {f"train_{name}": run.metrics["train"][name] for name in _TRAIN}
    row |= {name: run.metrics["collapse"][name] for name in _COLLAPSE}
    best = run.metrics["best_epoch_selected_on_test"]
    return row | {"best_epoch_balanced_selected_on_test": best["balanced"]}


def publish_runs(notebook: str, runs: Iterable[Run], profile: str | None = None) -> Path:
    """Write one row a run to `build/<profile>/published/<notebook>.runs.csv`, and return the path.

    Each row also names the commit of the project that the runs were asked from ("+" after it: with changes;
    empty: no repository). The run's key holds a fingerprint of the code itself. Lists and mappings are JSON.

    Raises:
        ValueError: no run, something else than a Run, or a name that is no file name.
        StoreError: the folder cannot be written.
    """
    runs = list(runs) if isinstance(runs, Iterable) else [runs]
    strange = next((run for run in runs if not isinstance(run, Run)), None)
    if strange is not None:
        raise ValueError(
            f"`runs` must hold runs, such as `run` and `run_many` return; found {type(strange).__name__} "
            f"({strange!r:.60})."
        )
    commit = project_commit()
    rows = [{"commit": commit, **run_row(run)} for run in runs]
    if not rows:
        raise ValueError("`runs` must hold at least one run; found none.")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(name, row.get(name)) for name in names])
    path = build_folder(profile) / "published" / f"{_checked(notebook, 'notebook')}.runs.csv"
    with explained(path.parent, built=True):
        replace(path, out.getvalue().encode(), sync=False)
    return path


def read_runs(path: str | Path) -> list[dict[str, Any]]:
    """Read `publish_runs`'s CSV back into rows; a number, list or mapping becomes one again.

    A byte-order mark at the file's start is passed over.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no UTF-8 or no table, a line has not as many cells as the header, or a cell is
            neither of the named texts nor JSON; file, line and column are named.
    """
    try:
        lines = _lines(Path(path).read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"`{path}` must be a table in UTF-8 ({error}). {_AGAIN}") from error
    names = lines[0][1] if lines else []
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None or not all(names) or not names:
        found = "none" if doubled is None else f"`{doubled}` twice"
        raise ValueError(f"Line 1 of `{path}` must name each column once; found {found}. {_AGAIN}")
    return [_row(names, cells, line, path) for line, cells in lines[1:]]


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV that are not blank, with the line that each ends on."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(max(len(text), 1))  # numbers of thousands of classes stand in one cell
    try:
        return [(reader.line_num, cells) for cells in reader if cells]
    finally:
        csv.field_size_limit(limit)


def _row(names: list[str], cells: list[str], line: int, path: str | Path) -> dict[str, Any]:
    if len(names) != len(cells):
        raise ValueError(
            f"Line {line} of `{path}` must have a cell for each of the {len(names)} columns, the last "
            f"`{names[-1]}`; found {len(cells)}. {_AGAIN}"
        )
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            values[name] = cell if name in _TEXTS else _value(cell)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"Line {line} of `{path}`, column `{name}`, must be a number, a list or a mapping in JSON; "
                f"found `{cell:.60}`. {_AGAIN}"
            ) from error
    return values


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    return str(value) if name in _TEXTS else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _value(cell: str) -> Any:
    return None if cell == "" else json.loads(cell)
