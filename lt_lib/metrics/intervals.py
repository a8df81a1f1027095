"""How sure a mean over seeds is, and whether one method beats another on the same seeds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from lt_lib._checks import as_vector, check_choice, check_finite

Floats = NDArray[np.float64]
EXACT_PAIRS = 14  # up to here all sign patterns are counted
_FLIPS = 100_000  # random sign patterns beyond
_BLOCK = 2_000_000  # random numbers held at once


@dataclass(frozen=True)
class Interval:
    """An estimate with a two-sided interval."""

    estimate: float
    low: float
    high: float
    level: float  # nominal coverage, such as 0.95
    n: int  # values that it rests on

    def text(self, digits: int = 1, scale: float = 1.0) -> str:
        """Write "71.3 [70.1, 72.5]", each number times `scale` with `digits` decimals."""
        # + 0.0 turns -0.0 into 0.0
        mid, low, high = (
            f"{round(v * scale, digits) + 0.0:.{digits}f}" for v in (self.estimate, self.low, self.high)
        )
        return f"{mid} [{low}, {high}]"


@dataclass(frozen=True)
class Paired:
    """Comparison of two methods, a minus b, seed by seed."""

    difference: Interval  # Student t over the paired differences
    p_value: float  # two-sided sign-flip test of a mean difference of 0
    wins: int  # seeds on which a is strictly larger
    n: int  # pairs

    def verdict(self) -> str:
        """Say "higher", "lower" (a against b) or "not distinguishable".

        The rule: the interval of the difference excludes 0. Where all differences are equal the interval has
        no width and proves nothing by itself; then the sign-flip p-value must also be at most 1 - level.
        (By signs alone, fewer than six pairs can never reach 0.05.)
        """
        interval = self.difference
        if interval.low <= 0 <= interval.high:
            return "not distinguishable"
        if interval.low == interval.high and self.p_value > 1 - interval.level:
            return "not distinguishable"
        return "higher" if interval.low > 0 else "lower"


def seed_interval(values: Any, level: float = 0.95) -> Interval:
    """Student's interval for the mean over seeds: mean +- t_{n-1} s / sqrt(n), s over n - 1.

    Exact for independent normal values; values (n,) that are equal (to 12 digits) give no width.

    Raises:
        ValueError: fewer than 2 values, a value that is not finite, or a `level` outside (0, 1).
    """
    x = _values(values, "values", level)
    mean = float(x.mean())
    s = 0.0 if np.ptp(x) <= 1e-12 * np.abs(x).max() else float(x.std(ddof=1))
    half = float(stdtrit(len(x) - 1, (1 + level) / 2)) * s / math.sqrt(len(x))
    return Interval(mean, mean - half, mean + half, level, len(x))


def bootstrap_interval(
    values: Any, level: float = 0.95, resamples: int = 10_000, seed: int = 0, statistic: str = "mean"
) -> Interval:
    """Percentile bootstrap of the mean or median of values (n,), such as one number an image.

    For a handful of seeds it is too narrow (by sqrt((n - 1) / n), and more): use `seed_interval` there.

    Raises:
        ValueError: fewer than 2 values, a value that is not finite, an unknown statistic, or no resamples.
    """
    check_choice(statistic, ("mean", "median"), "statistic")
    x = _values(values, "values", level)
    if resamples < 100:
        raise ValueError(
            f"`resamples` must be at least 100 to show both ends; found {resamples}. Pass 10_000."
        )
    measure = np.mean if statistic == "mean" else np.median
    generator = np.random.default_rng(seed)
    drawn = [
        measure(x[generator.integers(0, len(x), (rows, len(x)))], axis=1)
        for rows in _blocks(resamples, len(x))
    ]
    low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(measure(x)), float(low), float(high), level, len(x))


def paired_comparison(a: Any, b: Any, level: float = 0.95, seed: int = 0) -> Paired:
    """Compare two methods run on the same seeds: values (n,) each, entry i of both from seed i.

    Two values that are equal to 12 digits are a tie, with difference 0.

    The p-value is that of the sign-flip (Fisher randomisation) test on the mean difference, two-sided: the
    share of sign patterns whose mean is at least as far from 0. All 2^n patterns up to n = 14; beyond that
    100,000 random ones drawn by `seed`, with one added to both counts so that p is never 0.

    Raises:
        ValueError: lengths differ, fewer than 2 pairs, a value not finite, or a `level` outside (0, 1).
    """
    x, y = _values(a, "a", level), _values(b, "b", level)
    if len(x) != len(y):
        raise ValueError(
            f"`a` and `b` must be paired, one value a seed; found {len(x)} and {len(y)}. Keep the seeds that "
            "both have."
        )
    d = x - y
    d[np.abs(d) <= 1e-12 * np.maximum(np.abs(x), np.abs(y))] = 0.0
    return Paired(seed_interval(d, level), _sign_flip(d, seed), int((d > 0).sum()), len(d))


def _sign_flip(d: Floats, seed: int) -> float:
    n = len(d)
    bar = abs(d.sum()) - 1e-12 * np.abs(d).sum()  # ties that rounding would break count as ties
    if n <= EXACT_PAIRS:
        patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ d) >= bar))
    generator = np.random.default_rng(seed)
    hits = 0
    for rows in _blocks(_FLIPS, n):
        signs = 2 * generator.integers(0, 2, (rows, n), dtype=np.int8) - 1
        hits += int((np.abs(signs @ d) >= bar).sum())
    return (hits + 1) / (_FLIPS + 1)


def _blocks(rows: int, width: int) -> Iterator[int]:
    size = max(1, _BLOCK // width)
    for start in range(0, rows, size):
        yield min(size, rows - start)


def _values(values: Any, name: str, level: float) -> Floats:
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie strictly between 0 and 1; found {level}. Pass 0.95 for 95 %.")
    tensor = as_vector(values, name)
    check_finite(tensor, name)
    if len(tensor) < 2:
        raise ValueError(
            f"`{name}` must hold at least 2 values to have a spread; found {len(tensor)}. Run more seeds."
        )
    result: Floats = tensor.detach().cpu().numpy()
    return result
