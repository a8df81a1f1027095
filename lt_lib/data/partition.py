"""Parts of a reader's own data: stratified, groups and copies kept together, small classes told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from lt_lib.data.pairs import PairSource
from lt_lib.data.sampling import check_seed, images_a_class
from lt_lib.data.scan import pixel_digests
from lt_lib.data.source import Part, Source, Split

Ints = NDArray[np.int64]
_STREAM = 6  # of a data seed: apart from the draws of `split` and `long_tail`
_NAMED = 5  # classes named in a note


def partition(
    source: Source, test: float = 0.25, calibration: float = 0, groups: Any = None, seed: int = 0
) -> Split:
    """Split a reader's own data into train, calibration and test parts, whatever its classes are like.

    As `split`, with these differences. A class that is too small to be in every part is in as many as it can,
    training first, then test, then calibration, and the note names it. Images of equal pixels count as one
    group, so copies stay in one part; a group whose images bear several labels is learned from. Where the
    source has a test or calibration part of its own, it is taken whole, the number for it stays unused, and
    training images that equal one of its images are left out, so that nothing is tested on what was learned.
    Of a class with fewer images than a whole number asks for, a quarter is taken instead.

    Shares are met to the image where no groups and copies are in the way, else as whole groups come out.

    Args:
        source: what `load` returned; images on disk are decoded once, to find copies.
        test: images a class, or share of each class in (0, 1).
        calibration: likewise; 0 for no calibration part.
        groups: (n,) name or number of the group of each training image; None takes the source's own.
        seed: the data seed.

    Raises:
        ValueError: there is one class, no class can be tested, shares leave nothing to learn from, a number
            is out of range, or `groups` is not one entry an image.
    """
    _check(source, test, calibration)
    check_seed(seed)
    train, digests, notes = _without_leaks(_grouped(source, groups))
    own = {"test": source.test, "calibration": source.calibration}
    asked = {"test": test, "calibration": calibration}
    wanted = {part: value for part, value in asked.items() if value and own[part] is None}
    generator = np.random.default_rng([int(seed), _STREAM])
    place = _draw(train.labels.numpy(), _units(train, digests), source.classes, wanted, generator)
    drawn = {part: np.flatnonzero(place == number) for number, part in enumerate(wanted, start=1)}
    held = {**own, **{part: train.take(where) for part, where in drawn.items() if len(where)}}
    tested = held["test"]
    if tested is None:
        raise ValueError(
            f"`{source.name}` must have a class with two images that are neither copies nor of one group, to "
            "learn from one and test on the other (groups and copies with several labels are learned from); "
            "found none. Add images, or make groups smaller."
        )
    learned = train.take(np.flatnonzero(place == 0))
    parts = Split(source.name, learned, held["calibration"], tested, source.class_names, "")
    notes = [source.note, *notes, *(_told(part, value) for part, value in wanted.items())]
    return replace(parts, note=" ".join(note for note in [*notes, *_told_absent(parts, wanted)] if note))


def absent_classes(split: Split) -> dict[str, tuple[str, ...]]:
    """Return, for each part of a split, the names of the classes without an image in it."""
    return {
        part: tuple(split.class_names[c] for c in np.flatnonzero(images.counts(split.classes).numpy() == 0))
        for part, images in split.parts().items()
    }


def _check(source: Source, test: float, calibration: float) -> None:
    if isinstance(source, PairSource):
        raise ValueError(
            f"`{source.name}` is composed when it is split, without copies or groups. Call `split` instead."
        )
    if source.classes < 2:
        raise ValueError(
            f"`{source.name}` must have at least two classes to tell apart; found one, "
            f"`{source.class_names[0]}`. Add images of another class."
        )
    for name, value in (("test", test), ("calibration", calibration)):
        if value or name == "test":
            images_a_class(value, np.ones(1, dtype=np.int64), name)  # refuses what is no number of images
    shares = [v for v in (test, calibration) if not isinstance(v, Integral)]
    if sum(shares) >= 1:
        raise ValueError(
            f"`test` and `calibration` must leave images to learn from; found shares of {test} and "
            f"{calibration}, {sum(shares):g} in all. Lower them below 1 together."
        )


def _grouped(source: Source, groups: Any) -> Source:
    if groups is None:
        return source
    given = np.asarray(groups)
    if given.shape != (len(source.train),):
        raise ValueError(
            f"`groups` must hold one entry for each of the {len(source.train)} training images; found shape "
            f"{given.shape}. Pass the patient, lesion or burst of each image."
        )
    numbers = Part(
        source.train.images,
        source.train.labels,
        source.train.index,
        source.train.labels.new_tensor(np.unique(given, return_inverse=True)[1]),
    )
    return replace(source, train=numbers)


def _without_leaks(source: Source) -> tuple[Part, NDArray[np.void], list[str]]:
    """The training part without images of the source's own other parts, its digests, and what to tell."""
    train = source.train
    digests = pixel_digests(train.images)
    others = [pixel_digests(part.images) for part in (source.test, source.calibration) if part is not None]
    if not others:
        return train, digests, []
    leaks = np.isin(digests, np.concatenate(others))
    labels = train.labels.numpy()
    left = np.bincount(labels[~leaks], minlength=source.classes)
    only = (left == 0)[labels]  # a class must be learned, even from what it is tested on
    leave = leaks & ~only
    notes = []
    if leave.any():
        notes.append(f"{int(leave.sum())} training images that equal a test or calibration image left out.")
    if only.any():
        names = _named([source.class_names[c] for c in np.flatnonzero(left == 0)])
        notes.append(f"Every training image equals a test or calibration image, and is kept, in: {names}.")
    kept = np.flatnonzero(~leave)
    return train.take(kept), digests[kept], notes


def _units(train: Part, digests: NDArray[np.void]) -> Ints:
    """Number (n,) what must stay together: images joined by equal pixels or a common group, in any chain."""
    labels = [np.unique(digests, return_inverse=True)[1]]
    if train.groups is not None:
        labels.append(np.unique(train.groups.numpy(), return_inverse=True)[1])
    n, ends, start = len(train), [], len(train)
    for numbers in labels:
        ends.append(start + numbers)
        start += int(numbers.max()) + 1
    images = np.tile(np.arange(n), len(labels))
    links = coo_matrix((np.ones(len(images)), (images, np.concatenate(ends))), shape=(start, start))
    return np.unique(connected_components(links, directed=False)[1][:n], return_inverse=True)[1]


def _draw(
    labels: Ints, units: Ints, classes: int, wanted: Mapping[str, float], generator: np.random.Generator
) -> Ints:
    """Place (n,) of each image: 0 to train, 1, 2, ... to the wanted parts in their order."""
    _, first, sizes = np.unique(units, return_index=True, return_counts=True)
    of_class = labels[first]
    mixed = np.zeros(len(sizes), dtype=bool)
    mixed[units[labels != of_class[units]]] = True
    counts = np.bincount(labels, minlength=classes)
    learned = np.bincount(labels[mixed[units]], minlength=classes) > 0  # by a group of several labels
    order = generator.permutation(len(sizes))
    order = order[~mixed[order]]
    order = order[np.argsort(of_class[order], kind="stable")]
    place = np.zeros(len(sizes), dtype=np.int64)
    starts = np.searchsorted(of_class[order], np.arange(classes + 1))
    for c in range(classes):
        mine = order[starts[c] : starts[c + 1]]
        place[mine] = _places(sizes[mine], _targets(int(counts[c]), wanted), bool(learned[c]))
    return place[units]


def _targets(images: int, wanted: Mapping[str, float]) -> list[int]:
    count = np.array([images])
    targets = [int(images_a_class(value, count, part)[0]) for part, value in wanted.items()]
    if sum(targets) < images:
        return targets
    return [
        max(images // 4, 1) if isinstance(v, Integral) else t
        for v, t in zip(wanted.values(), targets, strict=True)
    ]


def _places(sizes: Ints, targets: Sequence[int], learned: bool) -> Ints:
    """Part of each unit of one class: one unit for each part, as far as they go, then up to the targets."""
    place = np.zeros(len(sizes), dtype=np.int64)
    free = len(sizes) - (0 if learned else 1)  # one stays to learn from
    lacking = np.array(targets, dtype=np.int64)
    for part in range(min(len(targets), max(free, 0))):
        open_units = np.flatnonzero(place == 0)
        fitting = open_units[sizes[open_units] <= lacking[part]]
        unit = fitting[0] if len(fitting) else open_units[sizes[open_units].argmin()]
        place[unit] = part + 1
        lacking[part] -= sizes[unit]
        free -= 1
    for unit in np.flatnonzero(place == 0):
        part = int(lacking.argmax()) if len(lacking) else 0
        if free < 1 or not len(lacking) or lacking.max() < 1:
            break
        if sizes[unit] <= lacking[part]:
            place[unit] = part + 1
            lacking[part] -= sizes[unit]
            free -= 1
    return place


def _told(part: str, value: float) -> str:
    amount = f"{value} images a class" if isinstance(value, Integral) else f"a share of {value} of each class"
    return f"No {part} part of its own: {amount} set aside, copies and groups kept together."


def _told_absent(parts: Split, wanted: Mapping[str, float]) -> list[str]:
    notes = []
    for part, names in absent_classes(parts).items():
        if names and part in wanted:
            why = "too few images, or too few groups of them, to be there too"
            notes.append(f"Not in the {part} part, {why}: {_named(names)}.")
        elif names:
            notes.append(f"Not in the source's own {part} part: {_named(names)}.")
    if "calibration" in wanted and parts.calibration is None:
        notes.append("No calibration part: no class has enough images for one.")
    return notes


def _named(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:_NAMED]) + rest
