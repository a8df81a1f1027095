"""A reader's own images by a list: a CSV file of paths and labels."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from posixpath import normpath

import numpy as np

from lt_lib._checks import check_choice
from lt_lib._home import existing
from lt_lib.data.files import check_inside
from lt_lib.data.groups import group_numbers
from lt_lib.data.listing import Files, Listing, natural
from lt_lib.data.source import Source
from lt_lib.data.tables import SPREADSHEET, read_table

COLUMNS = ("path", "label")
OPTIONAL = ("group", "split")
PARTS = ("train", "calibration", "test")
_OTHER_COLUMNS = {
    **dict.fromkeys(("path", "paths", "file", "filename", "file_name", "filepath", "file_path"), "path"),
    **dict.fromkeys(("image", "images", "img", "image_path", "image_id", "name"), "path"),
    **dict.fromkeys(("label", "labels", "class", "class_name", "category", "target", "y"), "label"),
}
_OTHER_PARTS = {"training": "train", "testing": "test", **dict.fromkeys(("val", "valid"), "calibration")}
_OTHER_PARTS |= dict.fromkeys(("validation", "dev", "calib"), "calibration")
_ADVICE = "Write a header `path,label`, to which `group` and `split` may be added, and one row an image."
_NO_LABEL = ("", "na", "n/a", "nan", "null", "none")  # in any case: what tables write for no entry
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CODE = re.compile(r"-?0\d+")

Row = tuple[int, dict[str, str]]  # line number and cells


def load_csv(
    file: str | Path,
    root: str | Path | None = None,
    size: int = 64,
    memory_limit: int | None = None,
    damaged: str = "refuse",
) -> Source:
    """Load a source from a CSV file with the columns `path`, `label` and, where wanted, `group` and `split`.

    Paths start from the folder of the list and must not leave it. Labels are names, in any script; where each
    is a whole number (`3`, `3.0`, `-1`) they are taken as numbers and sorted as such, else in natural order.
    Where one has a leading zero (`007`) all are names, so that no zero is lost.
    Images that share a `group` (a patient, a burst of a camera) never part in a split; an empty cell is a
    group of its own. `split` says `train`, `test` or `calibration` (`val`, `validation`, `dev` are read as
    `calibration`). Commas, semicolons and tabs are understood; other columns are left alone.

    Args:
        file: the list, UTF-8; a relative path is taken from `root`, else from the current folder, else from
            the project's.
        root: folder for relative paths; a relative one is looked for in the same two.
        size: height and width of the images: the shorter side is resized to it, the centre cropped.
        memory_limit: see `source_from_files`.
        damaged: likewise.

    Raises:
        FileNotFoundError: there is no such list, or a file of it is absent.
        ValueError: a column is missing, a path leaves the folder or comes twice, a label is missing or a
            fraction, a cell has a line break in it (a quotation mark was not closed), a part is unknown, or
            a label has no training image; the line is named.
    """
    return list_rows(file, root).source(size, memory_limit, damaged)


def list_rows(file: str | Path, root: str | Path | None = None) -> Listing:
    """List the files that `load_csv` takes, and open none; arguments and errors are its own."""
    path = existing("csv", file, root)
    rows = read_table(path, COLUMNS, _ADVICE, OPTIONAL, _OTHER_COLUMNS, SPREADSHEET)
    if not rows:
        raise ValueError(f"`{path}` must list at least one image; found a header alone. {_ADVICE}")
    _check_cells(path, rows)
    _check_paths(path, rows)
    labels = _labels(path, rows)
    order = _in_order(set(labels))
    parts = [_part(path, row) for row in rows]
    _check_learned(path, rows, labels, parts)
    number = {name: c for c, name in enumerate(order)}
    groups = group_numbers([row.get("group", "") for _, row in rows]) if "group" in rows[0][1] else None

    def files(part: str) -> Files:
        where = [i for i, own in enumerate(parts) if own == part]
        names = tuple(normpath(rows[i][1]["path"].replace("\\", "/")) for i in where)
        numbers = np.array([number[labels[i]] for i in where], dtype=np.int64)
        return Files(names, numbers, None if groups is None else groups[where])

    held = {part: files(part) for part in PARTS if part in parts}
    note = f"Images listed in `{path.name}`."
    return Listing(f"csv:{path.name}", path.parent, held, tuple(order), note)


def _check_cells(path: Path, rows: Sequence[Row]) -> None:
    for line, row in rows:
        for column in (*COLUMNS, *OPTIONAL):
            if column in row and _CONTROL.search(row[column]):
                raise ValueError(
                    f"Line {line} of `{path}` must hold one line of text as `{column}`; found "
                    f"{row[column][:60]!r}. Close the quotation mark before it, or mend the row."
                )


def _check_paths(path: Path, rows: Sequence[Row]) -> None:
    seen: dict[str, tuple[int, str]] = {}
    for line, row in rows:
        check_inside(row["path"], f"Line {line} of `{path}`")
        name = normpath(row["path"].replace("\\", "/"))  # `./a//b` is `a/b`: one image, one row
        if name in seen:
            first, label = seen[name]
            also = "" if label == row["label"] else f" with another label, `{row['label']}` after `{label}`"
            raise ValueError(
                f"Line {line} of `{path}` must name a new image; found `{name}` of line {first} again{also}. "
                "Keep one of the rows."
            )
        seen[name] = line, row["label"]


def _labels(path: Path, rows: Sequence[Row]) -> list[str]:
    """Labels as they will be called: whole numbers without a decimal point where every label is a number."""
    for line, row in rows:
        if row["label"].casefold() in _NO_LABEL:
            raise ValueError(
                f"Line {line} of `{path}` must give a label; found `{row['label']}`. Write one, or leave "
                "out the row: images without a label cannot be learned from."
            )
    values = [_number(row["label"]) for _, row in rows]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(rows) or _coded(row["label"] for _, row in rows):
        return [unicodedata.normalize("NFC", row["label"]) for _, row in rows]
    for (line, row), value in zip(rows, numbers, strict=True):
        if not value.is_integer():
            raise ValueError(
                f"Line {line} of `{path}` must give a class; found the number `{row['label']}`, which is not "
                "whole. Round the labels, or write them as names, such as `grade 2.5`."
            )
    return [str(int(value)) for value in numbers]


def _number(label: str) -> float | None:
    try:
        value = float(label) if label.isascii() and "_" not in label else math.nan
    except ValueError:
        return None
    return value if abs(value) < 2**53 else None  # also not a number, infinite


def _coded(labels: Iterable[str]) -> bool:
    return any(_CODE.fullmatch(label) for label in labels)


def _in_order(labels: set[str]) -> list[str]:
    if not _coded(labels) and all(_number(label) is not None for label in labels):
        return sorted(labels, key=int)
    return sorted(labels, key=natural)


def _part(path: Path, row: Row) -> str:
    line, cells = row
    if "split" not in cells:
        return "train"
    found = cells["split"].casefold()
    part = _OTHER_PARTS.get(found, found)
    check_choice(part, PARTS, f"split` in line {line} of `{path}")
    return part


def _check_learned(path: Path, rows: Sequence[Row], labels: Sequence[str], parts: Sequence[str]) -> None:
    learned = {label for label, part in zip(labels, parts, strict=True) if part == "train"}
    if not learned:
        raise ValueError(
            f"`{path}` must list training images; found none, only {', '.join(sorted(set(parts)))}. Write "
            "`train` into the column `split`, or leave the column out and the images will be split."
        )
    for (line, _), label, part in zip(rows, labels, parts, strict=True):
        if label not in learned:
            raise ValueError(
                f"Line {line} of `{path}` must give a label that training images have; found `{label}`, "
                f"which occurs only in the {part} part. Add training images of this class, or leave "
                "these rows out."
            )
