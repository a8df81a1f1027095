"""Disjoint parts of a source, and training parts cut to long-tailed counts, each by a data seed."""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lt_lib._checks import check_choice, check_counts
from lt_lib.data.files import ImageFiles
from lt_lib.data.groups import draw_groups
from lt_lib.data.pairs import PairSource, compose_pairs
from lt_lib.data.source import Part, Source, Split

DEFAULT_TEST_SHARE = 0.25
DRAWS = ("generator", "cao2019")
# streams of one data seed: a split, its pairs and a long tail must not share draws
_SPLIT, _TEST, _PAIRS, _TAIL, _NORMALISATION = 1, 2, 3, 4, 5
_SAMPLED_FILES = 10_000

Cuttable = TypeVar("Cuttable", Source, Split)
Ints = NDArray[np.int64]


def split(
    source: Source | PairSource, calibration: float = 0, test: float | None = None, seed: int = 0
) -> Split:
    """Split into train, calibration and test parts that share no image and hold every class.

    An integer takes that many images a class (balanced); a float in (0, 1) takes that share of each class,
    rounded, at least one image (stratified). Both are counted on the part that they are drawn from: the
    training part for calibration, the source's test part for test where it has one, else the training part.
    Images keep their order. Of pairs, the singles are split first and each part is composed of its own.

    Images of one group (`Part.groups`) stay together: whole groups are drawn in random order while they fit,
    so that a share may come out a little smaller; a group whose images bear several labels stays in the
    training part.

    Args:
        source: what `load` returned.
        calibration: images a class or share; 0 for the source's own calibration part, or none.
        test: images a class or share; None takes the source's whole test part, or a share of 0.25 where it
            has none (`Split.note` says so).
        seed: the data seed, apart from any training seed.

    Raises:
        ValueError: a number is out of range, a class has too few images to be in every part, or whole groups
            do not add up to a number of images.
    """
    if isinstance(source, PairSource):
        return _split_pairs(source, calibration, test, seed)
    own_test, notes = source.test is not None, [source.note]
    if test is None and not own_test:
        test = DEFAULT_TEST_SHARE
        notes.append(f"No test part of its own: a stratified share of {test} of each class was set aside.")
    counts = source.counts.numpy()
    held_out = np.zeros_like(counts) if own_test or test is None else images_a_class(test, counts, "test")
    aside = np.zeros_like(counts) if calibration == 0 else images_a_class(calibration, counts, "calibration")
    if source.calibration is not None and aside.any():
        raise ValueError(
            f"`calibration` must be 0 for `{source.name}`, which has a calibration part of its own; found "
            f"{calibration}. Leave it out, or mark those images as training images."
        )
    _check_room(source, counts, held_out, aside)

    generator, groups = _generator(seed, _SPLIT), source.train.groups
    labels = source.train.labels.numpy()
    if groups is None:
        rank = _ranks(labels, source.classes, generator)
        in_test = rank < held_out[labels]
        in_calibration = ~in_test & (rank < (held_out + aside)[labels])
    else:
        wanted = {"test": (held_out, test), "calibration": (aside, calibration)}
        in_test, in_calibration = draw_groups(labels, groups.numpy(), wanted, generator)
        notes.append("Images of one group stay in one part.")
    return Split(
        source.name,
        source.train.take(np.flatnonzero(~in_test & ~in_calibration)),
        source.train.take(np.flatnonzero(in_calibration)) if aside.any() else source.calibration,
        _own_test(source, test, seed) if own_test else source.train.take(np.flatnonzero(in_test)),
        source.class_names,
        " ".join(n for n in notes if n),
    )


def long_tail(source: Cuttable, counts: Any, seed: int, draw: str = "generator") -> Cuttable:
    """Cut the training part to `counts[c]` images of class c; calibration and test stay as they are.

    Within a class the images are drawn at random without replacement; classes and images keep their order.
    For one seed the draws are nested: smaller counts keep a subset of what larger counts keep.

    Args:
        source: a Source or a Split. Usual order: split first, then cut.
        counts: (C,) whole numbers, each at least 1 and at most the images at hand.
        seed: the data seed, apart from any training seed.
        draw: "generator" draws with a generator of its own; "cao2019" repeats the draws of the released code
            of Cao et al. (arXiv 1906.07413: a legacy generator seeded once, the classes shuffled one by one,
            the first images kept; their seed is 0), without touching the global generator.

    Raises:
        ValueError: `counts` has another length, a class would be empty, or a class has too few images.
    """
    if isinstance(source, PairSource):
        raise ValueError(
            f"`{source.name}` is composed when it is split, so its long tail is cut afterwards. Call "
            "`long_tail(split(source), counts, seed)`."
        )
    check_choice(draw, DRAWS, "draw")
    wanted = check_counts(counts, "counts").cpu().numpy()
    have = source.counts.numpy()
    if len(wanted) != len(have):
        raise ValueError(
            f"`counts` must hold one number for each of the {len(have)} classes of `{source.name}`; found "
            f"{len(wanted)}. Pass `classes={len(have)}` to the function that makes them."
        )
    short = np.flatnonzero(wanted > have)
    if len(short):
        c = short[0]
        raise ValueError(
            f"Class {c} has {have[c]} training images in `{source.name}`, but `counts` asks for {wanted[c]} "
            f"({len(short)} classes are short). Lower the largest count, or set fewer images aside."
        )
    labels = source.train.labels.numpy()
    if draw == "cao2019":
        rank = _ranks_of_cao(labels, source.classes, seed)
    else:
        rank = _ranks(labels, source.classes, _generator(seed, _TAIL))
    train = source.train.take(np.flatnonzero(rank < wanted[labels]))
    note = f"{source.note} Training part cut to {len(train)} images (data seed {seed}).".strip()
    return replace(source, train=train, note=note)


def normalisation(part: Part) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the pixels of each channel, on the scale 0..1.

    A constant channel gets standard deviation 1, so that it is mapped to 0 rather than divided by 0. Of
    images on disk, at most 10,000 are read: a random sample that depends on their number alone.

    Returns:
        mean (ch,), std (ch,), float32.
    """
    images = part.images
    if isinstance(images, ImageFiles) and len(images) > _SAMPLED_FILES:
        drawn = _generator(0, _NORMALISATION).choice(len(images), _SAMPLED_FILES, replace=False)
        images = images.take(np.sort(drawn))
    total = torch.zeros(part.channels, dtype=torch.float64)
    squares, pixels = torch.zeros_like(total), 0
    # float64 sums without a float64 copy of all images
    for block in images.split(256 if isinstance(images, ImageFiles) else 4096):
        values = block.to(torch.float64).transpose(0, 1).flatten(1)
        total, squares = total + values.sum(1), squares + values.square().sum(1)
        pixels += values.shape[1]
    scale = 255.0 if part.images.dtype == torch.uint8 else 1.0
    mean = total / pixels
    variance = (squares / pixels - mean.square()).clamp(min=0)
    std = variance.sqrt() / scale
    std = torch.where(std < 1e-6, torch.ones_like(std), std)
    return (mean / scale).to(torch.float32), std.to(torch.float32)


def _split_pairs(source: PairSource, calibration: float, test: float | None, seed: int) -> Split:
    singles = split(source.singles, calibration, test, seed)
    own_test = source.singles.test

    def compose(part: Part, stream: int) -> Part:
        origin = own_test if stream == 2 and own_test is not None else source.singles.train
        generator = _generator(seed, _PAIRS, stream)
        return compose_pairs(part, source.singles.classes, len(origin), source.limit, generator)

    calibrating = singles.calibration
    return Split(
        source.name,
        compose(singles.train, 0),
        None if calibrating is None else compose(calibrating, 1),
        compose(singles.test, 2),
        source.class_names,
        f"{source.note} {singles.note}".strip(),
    )


def _own_test(source: Source, test: float | None, seed: int) -> Part:
    part = source.test
    assert part is not None
    if test is None:
        return part
    counts = part.counts(source.classes).numpy()
    take = images_a_class(test, counts, "test")
    short = np.flatnonzero(take > counts)
    if len(short):
        c = short[0]
        raise ValueError(
            f"Class {c} has {counts[c]} images in the test part of `{source.name}`, but `test` = {test} "
            f"needs {max(take[c], 1)}. Lower `test`, or leave it out to use the whole test part."
        )
    labels = part.labels.numpy()
    rank = _ranks(labels, source.classes, _generator(seed, _TEST))
    return part.take(np.flatnonzero(rank < take[labels]))


def images_a_class(value: float, counts: Ints, name: str) -> Ints:
    """Return images to take of each class (C,): `value` itself, or that share of `counts`, at least one.

    Raises:
        ValueError: `value` is neither a whole number from 1 nor a share in (0, 1).
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= 1:
        return np.full_like(counts, int(value))
    if isinstance(value, Real) and not isinstance(value, Integral) and 0 < value < 1:
        return np.maximum(np.floor(counts * float(value) + 0.5).astype(np.int64), 1)
    raise ValueError(
        f"`{name}` must be a whole number of images a class from 1, or a share strictly between 0 and 1; "
        f"found {value!r}. Pass 50 for 50 images of each class, or 0.2 for a fifth of each."
    )


def _check_room(source: Source, counts: Ints, held_out: Ints, aside: Ints) -> None:
    short = np.flatnonzero(held_out + aside >= counts)
    if len(short):
        c = short[0]
        takes = [(held_out, "test"), (aside, "calibration")]
        parts = " and ".join(f"{take[c]} for {name}" for take, name in takes if take[c])
        raise ValueError(
            f"Class {c} has {counts[c]} images in `{source.name}`, but the split needs at least "
            f"{held_out[c] + aside[c] + 1}: {parts}, and 1 to train on ({len(short)} classes are short). Set "
            "fewer images aside, add images, or drop the class."
        )


def _generator(seed: int, *stream: int) -> np.random.Generator:
    check_seed(seed)
    return np.random.default_rng([int(seed), *stream])


def check_seed(seed: int) -> None:
    """Refuse what is no data seed.

    Raises:
        ValueError: it is no whole number below 2^32.
    """
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(
            f"`seed` must be a whole number in 0..2**32 - 1; found {seed!r}. Pass for example 0."
        )


def _ranks(labels: Ints, classes: int, generator: np.random.Generator) -> Ints:
    """Each image's place (n,) in a random order of its class."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels, minlength=classes)
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def _ranks_of_cao(labels: Ints, classes: int, seed: int) -> Ints:
    check_seed(seed)
    generator = np.random.RandomState(seed)
    ranks = np.empty(len(labels), dtype=np.int64)
    for members in (np.flatnonzero(labels == c) for c in range(classes)):
        generator.shuffle(members)
        ranks[members] = np.arange(len(members))
    return ranks
