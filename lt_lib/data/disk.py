"""Sources made of image files: decoded at once where they fit into memory, else when they are needed."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from numpy.typing import NDArray

from lt_lib.data.files import ImageFiles
from lt_lib.data.source import Part, Source

MEMORY_LIMIT = 2**30  # bytes


def source_from_files(
    name: str,
    train: tuple[ImageFiles, NDArray[Any]],
    test: tuple[ImageFiles, NDArray[Any]] | None,
    class_names: Sequence[str],
    note: str,
    memory_limit: int | None = None,
    groups: NDArray[Any] | None = None,
) -> Source:
    """Build a source from image files and their labels.

    Args:
        name: what to call the data.
        train: files and labels (n,) in 0..C-1, each class at least once.
        test: likewise (m,), or None.
        class_names: (C,) different names.
        note: where the images come from.
        memory_limit: most bytes that the decoded images of both parts may take; above it they stay on disk.
            None is 1 GiB; 0 leaves them on disk in any case.
        groups: (n,) group of each training image, whose images `split` keeps together.

    Raises:
        ValueError: labels leave 0..C-1, a class has no training image, or (where they are decoded at once) a
            file is no whole image; it is named.
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    if isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 0:
        raise ValueError(
            f"`memory_limit` must be a whole number of bytes from 0; found {memory_limit!r}. Pass 2**30, say."
        )
    fits = sum(files.nbytes for files, _ in (train, test or train)[: 2 if test else 1]) <= limit

    def part(files: ImageFiles, labels: NDArray[Any], groups: NDArray[Any] | None = None) -> Part:
        numbers = torch.as_tensor(labels, dtype=torch.int64)
        together = None if groups is None else torch.as_tensor(groups, dtype=torch.int64)
        return Part(files.decode() if fits else files, numbers, torch.arange(len(numbers)), together)

    size = train[0].size
    cut = f"Shorter side resized to {train[0].shorter}, centre {size} x {size}"
    held = "decoded" if fits else "left on disk, since they take more memory decoded than `memory_limit`"
    return Source(
        name,
        part(*train, groups),
        None if test is None else part(*test),
        tuple(class_names),
        f"{note} {cut}; {held}.",
    )
