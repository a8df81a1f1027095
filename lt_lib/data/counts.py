"""Class counts of long-tailed training sets, and statistics of imbalance computed from counts alone."""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lt_lib._checks import check_counts

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Imbalance:
    """How uneven class counts are; every number is invariant to renaming the classes."""

    classes: int  # C
    total: int  # images
    largest: int  # images in the largest class
    smallest: int  # images in the smallest class
    factor: float  # largest / smallest, >= 1
    gini: float  # Gini coefficient of the counts, 0 (balanced) .. 1 - 1/C
    entropy: float  # Shannon entropy of the class shares over log C, 0..1 (1: balanced)
    effective_classes: float  # exp of the entropy in nats, 1..C


def exponential_counts(largest: int, imbalance: float, classes: int) -> Counts:
    """Exponential profile: class c keeps int(largest * imbalance ** (-c / (C - 1))) images.

    The long-tailed profile of Cao et al. (arXiv 1906.07413), cut by `int()` as in their code; class 0 is
    the largest, class C - 1 holds largest / imbalance. A value that is whole but for floating-point
    rounding is not cut to the number below it (49 / 49 is 1, although 49 * 49 ** -1.0 < 1).

    Args:
        largest: images in class 0.
        imbalance: largest over smallest count, >= 1 (100, where some code writes 0.01).
        classes: number of classes C, at least 2.

    Returns:
        int64 array (C,), never rising.

    Raises:
        ValueError: an argument is out of range, or a class would be left without images.
    """
    _check_profile(largest, imbalance, classes)
    share = float(imbalance) ** (-np.arange(classes) / (classes - 1))
    return _cut(largest * share, largest, imbalance)


def step_counts(largest: int, imbalance: float, classes: int, tail: float = 0.5) -> Counts:
    """Step profile: the last int(tail * C) classes keep int(largest / imbalance) images, the rest all.

    The step profile of Buda et al. (arXiv 1710.05381) and Cao et al. (arXiv 1906.07413, tail = 1/2);
    "all" is `largest`.

    Args:
        largest: images in each class of the head.
        imbalance: largest over smallest count, >= 1.
        classes: number of classes C, at least 2.
        tail: share of tail classes, in (0, 1); at least one class is tail and one is head.

    Returns:
        int64 array (C,), never rising.

    Raises:
        ValueError: an argument is out of range, or a class would be left without images.
    """
    _check_profile(largest, imbalance, classes)
    if not (isinstance(tail, Real) and 0 < tail < 1):
        raise ValueError(
            f"`tail` must lie strictly between 0 and 1; found {tail}. Pass the share of tail classes."
        )
    tail_classes = min(max(int(tail * classes + 1e-9), 1), classes - 1)
    share = np.ones(classes)
    share[classes - tail_classes :] = 1 / imbalance
    return _cut(largest * share, largest, imbalance)


def imbalance_statistics(counts: Any) -> Imbalance:
    """Describe the imbalance of class counts (tensor, array or list, (C,), each at least 1).

    Gini is the mean absolute difference over twice the mean, sum_ij |n_i - n_j| / (2 C^2 mean), taken over
    *counts*. Taken over the label ids of the images instead, as some tools do, it would change when
    classes are renamed and would not measure imbalance.

    Raises:
        ValueError: a class is empty (it is named), or a count is no whole number.
    """
    values = np.sort(check_counts(counts, "counts").cpu().numpy()).astype(np.float64)
    classes, total = len(values), values.sum()
    # sorted form of the double sum: O(C log C) and no C x C array
    gini = float((2 * np.arange(1, classes + 1) - classes - 1) @ values / (classes * total))
    shares = values / total
    nats = float(-(shares * np.log(shares)).sum())
    return Imbalance(
        classes=classes,
        total=int(total),
        largest=int(values[-1]),
        smallest=int(values[0]),
        factor=float(values[-1] / values[0]),
        gini=gini,
        entropy=nats / math.log(classes) if classes > 1 else 1.0,
        effective_classes=math.exp(nats),
    )


def _check_profile(largest: int, imbalance: float, classes: int) -> None:
    for value, name, minimum in ((largest, "largest", 1), (classes, "classes", 2)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
            raise ValueError(
                f"`{name}` must be a whole number of at least {minimum}; found {value!r}. Pass a plain "
                "integer."
            )
        if value >= 2**53:
            raise ValueError(
                f"`{name}` must lie below 2^53, where float64 is exact; found {value}. Lower it."
            )
    if not isinstance(imbalance, Real) or not math.isfinite(imbalance) or imbalance < 1:
        raise ValueError(
            f"`imbalance` must be a finite number of at least 1, the largest count over the smallest; found "
            f"{imbalance!r}. Pass 100 where other code writes 0.01, and 1 for balanced classes."
        )


def _cut(values: NDArray[np.float64], largest: int, imbalance: float) -> Counts:
    # 1e-9 relative is far above rounding of the power; a thousandth is far below one image, however many
    slack = np.maximum(np.minimum(1e-9 * values, 1e-3), 8 * np.finfo(np.float64).eps * values)
    counts = np.minimum(np.floor(values + slack).astype(np.int64), largest)
    empty = np.flatnonzero(counts < 1)
    if len(empty):
        raise ValueError(
            f"Class {empty[0]} is left with 0 images by `largest` = {largest} and `imbalance` = "
            f"{imbalance:g}, but each class needs at least 1. Lower `imbalance` to at most {largest}, or "
            "raise `largest`."
        )
    return counts
