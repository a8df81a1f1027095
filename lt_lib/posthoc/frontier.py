"""The frontier of accuracy against sigma: which trade-offs no other point beats in both.

By Theorem T5 whole frontiers are compared, never one point: sigma alone is least for a classifier that is
equally bad everywhere.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def frontier(points: Any) -> tuple[int, ...]:
    """Return the positions of the non-dominated points, in order of rising accuracy.

    A point is dominated if another has at least its accuracy and at most its sigma, and one of the two is
    strictly better. Of equal points the first is kept. Along the frontier sigma rises with accuracy.

    Args:
        points: (n, 2): accuracy (plain or balanced) and sigma.

    Raises:
        ValueError: another shape, or a value that is not finite.
    """
    rows = _points(points)
    order = np.lexsort((np.arange(len(rows)), rows[:, 1], -rows[:, 0]))  # best accuracy first, then sigma
    kept, least = [], math.inf
    for i in order:
        if rows[i, 1] < least:
            kept.append(int(i))
            least = rows[i, 1]
    return tuple(reversed(kept))


def sigma_at(points: Any, accuracy: float) -> float:
    """Return the least sigma among points with at least this accuracy; nan where there is none.

    It compares methods at equal accuracy without interpolation: between two points of a frontier lie rules
    that mix them at random, whose sigma is at most the mixture of theirs.

    Raises:
        ValueError: as `frontier`.
    """
    rows = _points(points)
    reached = rows[rows[:, 0] >= accuracy]
    return float(reached[:, 1].min()) if len(reached) else math.nan


def frontier_area(points: Any, reference: tuple[float, float]) -> float:
    """Return the area of what the points dominate within the reference (the hypervolume of two objectives).

    It is the measure of the pairs (accuracy, sigma), with accuracy above and sigma below the reference's,
    that some point is at least as good as (Zitzler and Thiele 1999). One number for a whole frontier; it
    depends on the reference, which must be the same for all methods: the base model is a natural one.

    Args:
        points: (n, 2): accuracy and sigma; those that do not improve on the reference in both add nothing.
        reference: accuracy and sigma of a point to improve on.

    Raises:
        ValueError: as `frontier`.
    """
    rows = _points(points)
    area, floor = 0.0, float(reference[0])
    for i in frontier(rows):
        high, low = rows[i]
        if high > floor:
            area += (high - floor) * max(0.0, float(reference[1]) - low)
            floor = high
    return float(area)


def _points(points: Any) -> Floats:
    rows = np.asarray(points, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0 or not np.isfinite(rows).all():
        raise ValueError(
            "`points` must be finite pairs (accuracy, sigma), shape (n, 2), at least one; found shape "
            f"{rows.shape}."
        )
    return rows
