"""Splits that keep groups of images together, such as all images of one lesion."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def group_numbers(names: Sequence[str]) -> Ints:
    """Number the groups (n,) in order of appearance; an image with an empty name is a group of its own."""
    known: dict[str, int] = {}
    # an image without a group gets a key that no group has
    keys = [name or f"\0{i}" for i, name in enumerate(names)]
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def draw_groups(
    labels: Ints,
    groups: Ints,
    wanted: Mapping[str, tuple[Ints, Any]],
    generator: np.random.Generator,
) -> tuple[Mask, ...]:
    """Draw whole groups for each part until it holds the wanted images of each class, or none more fits.

    Groups are met in random order; each goes to the part that lacks most images of its class, unless the
    group has more than that, and else stays. A group whose images bear several labels always stays.

    Args:
        labels: (n,) class of each image.
        groups: (n,) group of each image.
        wanted: for each part, images of each class (C,), and the number or share that they were made from: a
            whole number must come out exactly.
        generator: of the draw.

    Returns:
        for each part, which images it takes, (n,).

    Raises:
        ValueError: whole groups do not add up to a whole number, or give a class no image in some part.
    """
    _, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    low = np.full(len(sizes), labels.max())
    high = np.zeros(len(sizes), dtype=np.int64)
    np.minimum.at(low, member, labels)
    np.maximum.at(high, member, labels)

    names = list(wanted)
    lacking = np.stack([images for images, _ in wanted.values()])  # (parts, C)
    place = np.full(len(sizes), -1)
    for group in generator.permutation(len(sizes)):
        c = low[group]
        part = int(lacking[:, c].argmax())
        if c == high[group] and sizes[group] <= lacking[part, c]:
            place[group] = part
            lacking[part, c] -= sizes[group]
    for name, still in zip(names, lacking, strict=True):
        _check_drawn(name, wanted[name], still)
    _check_rest(labels, place[member] < 0, len(lacking[0]))
    return tuple(place[member] == part for part in range(len(names)))


def _check_drawn(name: str, wanted: tuple[Ints, Any], lacking: Ints) -> None:
    images, asked = wanted
    exact = isinstance(asked, Integral)
    short = np.flatnonzero(lacking > 0 if exact else (lacking == images) & (images > 0))
    if len(short):
        c = short[0]
        raise ValueError(
            f"Class {c} has groups of images that cannot be torn apart: `{name}` = {asked} needs "
            f"{images[c]} of its images, and whole groups came to {images[c] - lacking[c]}. Set another "
            "number aside, or a larger share, which need not be met exactly."
        )


def _check_rest(labels: Ints, rest: Mask, classes: int) -> None:
    empty = np.flatnonzero(np.bincount(labels[rest], minlength=classes) == 0)
    if len(empty):
        raise ValueError(
            f"Class {empty[0]} is left without training images, since whole groups were set aside. Set fewer "
            "images aside."
        )
