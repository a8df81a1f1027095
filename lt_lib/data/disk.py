"""Sources made of image files: decoded at once where they fit into memory, else when they are needed."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lt_lib._checks import check_choice
from lt_lib.data.files import ImageFiles
from lt_lib.data.names import readable
from lt_lib.data.source import Part, Source

MEMORY_LIMIT = 2**30  # bytes
DAMAGED = ("refuse", "leave out")


def check_damaged(damaged: str) -> None:
    """Refuse what `damaged` cannot be.

    Raises:
        ValueError: it is none of `DAMAGED`.
    """
    check_choice(damaged, DAMAGED, "damaged")


def source_from_files(
    name: str,
    train: tuple[ImageFiles, NDArray[Any]],
    test: tuple[ImageFiles, NDArray[Any]] | None,
    class_names: Sequence[str],
    note: str,
    memory_limit: int | None = None,
    groups: NDArray[Any] | None = None,
    calibration: tuple[ImageFiles, NDArray[Any]] | None = None,
    damaged: str = "refuse",
) -> Source:
    """Build a source from image files and their labels.

    Args:
        name: what to call the data.
        train: files and labels (n,) in 0..C-1, each class at least once.
        test: likewise (m,), or None.
        class_names: (C,) different names.
        note: where the images come from.
        memory_limit: most bytes that the decoded images of all parts may take; above it they stay on disk.
            None is 1 GiB; 0 leaves them on disk in any case.
        groups: (n,) group of each training image, whose images `split` keeps together.
        calibration: as `test`, or None.
        damaged: "refuse" names the first file that is no whole image; "leave out" decodes every file once,
            keeps those that are whole, and names the others in the note.

    Raises:
        ValueError: labels leave 0..C-1, a class has no training image, or (where they are decoded at once) a
            file is no whole image; it is named.
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    if isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 0:
        raise ValueError(
            f"`memory_limit` must be a whole number of bytes from 0; found {memory_limit!r}. Pass 2**30, say."
        )
    check_damaged(damaged)
    given = {"train": train, "calibration": calibration, "test": test}
    fits = sum(pair[0].nbytes for pair in given.values() if pair) <= limit
    parts: dict[str, Part | None] = {}
    broken: list[str] = []
    for kind, pair in given.items():
        parts[kind] = None
        if pair is not None:
            together = groups if kind == "train" else None
            parts[kind], bad = _part(*pair, together, fits, leave_out=damaged == "leave out")
            broken += bad
    learned = parts["train"]
    assert learned is not None
    _check_whole(name, train, learned, class_names, broken)
    size = train[0].size
    cut = f"Shorter side resized to {train[0].shorter}, centre {size} x {size}"
    held = "decoded" if fits else "left on disk, since they take more memory decoded than `memory_limit`"
    notes = [note, _told(broken), f"{cut}; {held}."]
    whole = " ".join(n for n in notes if n)
    return Source(name, learned, parts["test"], tuple(class_names), whole, parts["calibration"])


def _part(
    files: ImageFiles, labels: NDArray[Any], groups: NDArray[Any] | None, fits: bool, leave_out: bool
) -> tuple[Part, list[str]]:
    """The part, and the files that are left out of it."""
    numbers = torch.as_tensor(labels, dtype=torch.int64)
    together = None if groups is None else torch.as_tensor(groups, dtype=torch.int64)
    index = torch.arange(len(numbers))
    if not leave_out:
        return Part(files.decode() if fits else files, numbers, index, together), []
    images = torch.empty(tuple(files.shape), dtype=torch.uint8) if fits else None
    broken = files.damaged(images)
    every = Part(files if images is None else images, numbers, index, together)
    kept = every.take(np.setdiff1d(index.numpy(), list(broken))) if broken else every
    return kept, [files.names[i] for i in broken]


def _check_whole(
    name: str,
    train: tuple[ImageFiles, NDArray[Any]],
    kept: Part,
    class_names: Sequence[str],
    broken: Sequence[str],
) -> None:
    empty = np.flatnonzero(kept.counts(len(class_names)).numpy() == 0) if broken else np.empty(0)
    if len(empty):
        c = int(empty[0])
        first = train[0].names[int(np.flatnonzero(np.asarray(train[1]) == c)[0])]
        raise ValueError(
            f"Class `{class_names[c]}` of `{name}` must have a training image that can be decoded; found "
            f"none, the first file being `{readable(first)}`. Fetch its files again, or leave the class out."
        )


def _told(broken: Sequence[str]) -> str:
    if not broken:
        return ""
    rest = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    named = ", ".join(f"`{readable(name)}`" for name in broken[:3])
    return f"Left out, since no whole image can be decoded from it: {named}{rest}."
