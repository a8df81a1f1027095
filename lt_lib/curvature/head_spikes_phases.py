"""Where the largest gap in the spectrum of a collapsed head lies: after C - 1, C or 2C - 1 eigenvalues.

All of it follows from the closed forms of Theorem T3 with gamma = g^2 / r^2, and holds for p > 1/C.
"""

import math
from itertools import pairwise

from lt_lib.curvature.head_spikes import head_spikes


def head_ratios(classes: int, p: float, gamma: float) -> dict[int, float]:
    """Return position k -> lambda_k / lambda_{k+1} at each step between the levels down to the mini-bulk.

    Positions are 1 and C for gamma < 1/(C - 1), and C - 1, C, 2C - 1 above it; elsewhere the ratio is 1.
    Where two levels coincide (gamma = 1/(C - 1)) the step between them has ratio 1.

    Raises:
        ValueError: `classes`, `p` or `gamma` outside its range.
    """
    spikes = head_spikes(classes, p, 1.0, math.sqrt(_checked(classes, p, gamma)))
    chain = [level for level in spikes.levels if level.value >= spikes.mini_bulk * (1 - 1e-12)]
    ratios, position = {}, 0
    for level, below in pairwise(chain):
        position += level.multiplicity
        ratios[position] = level.value / below.value
    return ratios


def gap_position(classes: int, p: float, gamma: float) -> int:
    """Return after how many eigenvalues the largest ratio of `head_ratios` lies: C - 1, C or 2C - 1."""
    ratios = head_ratios(classes, p, gamma)
    return max(ratios, key=lambda position: ratios[position])


def phase_boundaries(classes: int, p: float) -> tuple[float, float]:
    """Return the two values of gamma between which the largest gap lies after 2C - 1 eigenvalues.

    Below the first it lies after C, above the second after C - 1. With x = C p - 1, n = C - 1::

        gamma_1 = ((n - 1) sqrt(C p) - 1) / (n (n - 1 - sqrt(C p)))
        gamma_2 = (n + (n - 1) x)^2 / (n (x + n)^2)

    For C <= 5 the middle phase is empty, and both equal `C p / n`. For C >= 6 it exists for every
    p > 1/C, since then `x^2 < n (n - 4) C p`.

    Raises:
        ValueError: `classes` below 3, or `p` not strictly between 1/C and 1.
    """
    _checked(classes, p, 0.0)
    n, x, root = classes - 1, classes * p - 1, math.sqrt(classes * p)
    if classes <= 5:
        return classes * p / n, classes * p / n
    return ((n - 1) * root - 1) / (n * (n - 1 - root)), (n + (n - 1) * x) ** 2 / (n * (x + n) ** 2)


def _checked(classes: int, p: float, gamma: float) -> float:
    if classes < 3:
        raise ValueError(f"`classes` must be at least 3; found {classes}. Two classes have a single spike.")
    if not 1 / classes < p < 1:
        raise ValueError(f"`p` must lie strictly between 1/{classes} and 1; found {p}.")
    if not 0 <= gamma < math.inf:
        raise ValueError(f"`gamma` must be finite and not negative; found {gamma}.")
    return gamma
