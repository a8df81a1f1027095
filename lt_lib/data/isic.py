"""ISIC 2019: skin lesions with a label table and a table that tells which images show the same lesion."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lt_lib.data.disk import source_from_files
from lt_lib.data.files import ImageFiles, check_inside
from lt_lib.data.groups import group_numbers
from lt_lib.data.roots import find_folder
from lt_lib.data.source import Source
from lt_lib.data.tables import read_table

LABELS = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
IMAGES = "ISIC_2019_Training_Input"
# images of each class in the published table; its ninth column, UNK, is for the test part and empty
COUNTS = {"MEL": 4522, "NV": 12875, "BCC": 3323, "AK": 867, "BKL": 2624, "DF": 239, "VASC": 253, "SCC": 628}
_NO_LESION = ("", "na", "n/a", "nan", "null", "none")  # in any case: what tables write for no entry
_ADVICE = "Fetch the table again."
_WAYS = (
    f"Get `{LABELS}`, `{METADATA}` and `{IMAGES}.zip` from https://challenge.isic-archive.com/data/#2019, "
    "unpack the images, and pass the folder that holds all three as `root` (or set LT_DATA)."
)


def load_isic(
    root: str | Path | None = None,
    size: int = 224,
    memory_limit: int | None = None,
    damaged: str = "refuse",
) -> Source:
    """Load the training part of ISIC 2019: 25,331 dermoscopic images of eight diagnoses, no test part.

    Images of one lesion form a group (`Part.groups`), which `split` never tears apart; an image without a
    lesion id in the metadata (an empty cell, NA, N/A, NaN, null or None, in capitals or not) is a group of
    its own. Lesion ids count as written, capitals included; blanks around cells do not. Images come as RGB
    with the shorter side at 8/7 of `size` (256 at 224).

    Args:
        root: folder with the two tables and the folder of images. None looks into the folder that the
            environment variable LT_DATA names.
        size: height and width of the images.
        memory_limit: see `source_from_files`.
        damaged: likewise.

    Raises:
        FileNotFoundError: a table or an image is not there; says what to get and where to put it.
        ValueError: a row has no positive label or several, an image is listed twice, lacks metadata, has two
            lesions or a name that leaves the folder, or the counts are not the published ones.
    """
    folder = isic_folder(root)
    names, labels = _labels(folder / LABELS)
    lesions = _lesions(folder / METADATA)
    absent = [name for name in names if name not in lesions]
    if absent:
        raise ValueError(
            f"`{folder / METADATA}` must have a row for each image; `{absent[0]}` has none ({len(absent)} "
            f"of {len(names)} images), so its lesion is unknown. {_WAYS}"
        )
    images = folder / IMAGES
    if (images / IMAGES).is_dir():  # some unpackers add a level
        images = images / IMAGES
    files = ImageFiles(images, [f"{name}.jpg" for name in names], size, shorter=round(size * 8 / 7))
    groups = group_numbers([lesions[name] for name in names])
    note = f"ISIC 2019's training images, {len(np.unique(groups))} lesions."
    found = (files, labels)
    return source_from_files(
        "isic2019", found, None, tuple(COUNTS), note, memory_limit, groups, damaged=damaged
    )


def isic_folder(root: str | Path | None = None) -> Path:
    """Return the folder with tables and images; `root` and errors are those of `load_isic`."""
    return find_folder(root, ("", "ISIC_2019", "isic2019"), (LABELS, METADATA, IMAGES), "ISIC 2019", _WAYS)


def _labels(path: Path) -> tuple[list[str], NDArray[np.int64]]:
    classes = tuple(COUNTS)
    names: dict[str, int] = {}
    for line, row in read_table(path, ("image", *classes), _ADVICE):
        name = row["image"]
        check_inside(name, f"Line {line} of `{path}`")
        positive = [
            column for column, value in row.items() if column != "image" and _is_one(value, line, path)
        ]
        if len(positive) != 1 or positive[0] not in classes:
            found = " and ".join(positive) or "none"
            raise ValueError(
                f"Line {line} of `{path}` must mark exactly one of {', '.join(classes)} with 1; found "
                f"{found} for `{name}`. Fetch the table again, or mend the row."
            )
        if name in names:
            raise ValueError(
                f"Line {line} of `{path}` must name a new image; found `{name}` again. Fetch the table again."
            )
        names[name] = classes.index(positive[0])
    labels = np.array(list(names.values()), dtype=np.int64)
    counts = dict(zip(classes, np.bincount(labels, minlength=len(classes)).tolist(), strict=True))
    if counts != COUNTS:
        wrong = next(c for c in classes if counts[c] != COUNTS[c])
        raise ValueError(
            f"`{path}` must list {COUNTS[wrong]} images of {wrong}, as published; found {counts[wrong]}. "
            "Fetch the table again."
        )
    return list(names), labels


def _is_one(value: str, line: int, path: Path) -> bool:
    try:
        return {0.0: False, 1.0: True}[float(value)]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"Line {line} of `{path}` must hold 0 and 1 alone; found `{value}`. Fetch the table again."
        ) from None


def _lesions(path: Path) -> dict[str, str]:
    lesions: dict[str, str] = {}
    for line, row in read_table(path, ("image", "lesion_id"), _ADVICE):
        found = row["lesion_id"]
        lesion = "" if found.casefold() in _NO_LESION else found
        if lesions.setdefault(row["image"], lesion) != lesion:
            raise ValueError(
                f"Line {line} of `{path}` must give `{row['image']}` the lesion of its earlier row, "
                f"`{lesions[row['image']]}`; found `{found}`. Keep one of the rows."
            )
    return lesions
