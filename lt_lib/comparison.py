"""Comparing many methods at once: correction for many tests, correlations about group means, orders.

It stands apart from `lt_lib.metrics`, on which trained runs depend.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from lt_lib._checks import as_vector, check_finite
from lt_lib.metrics import Interval

Floats = NDArray[np.float64]
_TINY = 1e-12  # a spread below this share of the values is rounding


def holm(p_values: Any) -> Floats:
    """Return p-values (m,) adjusted for m tests by Holm's step-down rule (Holm 1979).

    Rejecting those at or below 0.05 keeps the chance of any false rejection at most 0.05, however the tests
    depend on each other. The k-th smallest is multiplied by m - k + 1, cut at 1, and never below a smaller
    one's adjusted value.

    Raises:
        ValueError: no p-value, or one outside 0..1.
    """
    p = _vector(p_values, "p_values", least=1)
    if p.min() < 0 or p.max() > 1:
        raise ValueError(f"`p_values` must lie in 0..1; found {p.min():g} to {p.max():g}.")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    adjusted = np.empty_like(p)
    adjusted[order] = stepped
    return adjusted


def partial_correlation(
    x: Any,
    y: Any,
    groups: Sequence[Any],
    covariate: Any | None = None,
    clusters: Sequence[Sequence[Any]] = (),
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Correlation of x and y (n,) about the means of their groups, with a covariate regressed out of both.

    The interval is a percentile bootstrap over `clusters`: each entry labels every value, for instance by its
    method or by its seed, and its labels are drawn anew with replacement; with several entries
    independently (Owen 2007's pigeonhole bootstrap). A draw without any spread is left out. Labels that are
    few make it too narrow.

    Args:
        x: values.
        y: values.
        groups: a label for each value; only differences within a group count.
        covariate: (n,) or None.
        clusters: labels to resample; none: every value by itself.
        resamples: draws.
        seed: of the draws.
        level: nominal coverage.

    Returns:
        Estimate and ends in -1..1, NaN where there is no spread; n counts the values.

    Raises:
        ValueError: lengths differ, a value is not finite, or fewer than 3 values.
    """
    columns = [_vector(x, "x"), _vector(y, "y")]
    if covariate is not None:
        columns.append(_vector(covariate, "covariate"))
    n = len(columns[0])
    labels = [np.unique(_texts(g), return_inverse=True)[1] for g in (groups, *(clusters or [range(n)]))]
    if {len(v) for v in (*columns, *labels)} != {n}:
        raise ValueError("`x`, `y`, `groups`, `covariate` and each of `clusters` must be equally long.")
    group, *drawn = labels
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        weight = np.ones(n)
        for label in drawn:
            kinds = int(label.max()) + 1
            weight *= np.bincount(generator.integers(0, kinds, kinds), minlength=kinds)[label]
        found.append(_about_means(columns, group, weight))
    return _interval(_about_means(columns, group, np.ones(n)), np.array(found), level, n)


def rank_correlation(x: Any, y: Any, resamples: int = 2000, seed: int = 0, level: float = 0.95) -> Interval:
    """Spearman's rank correlation of x and y (n,), with a percentile bootstrap over the pairs.

    With about ten pairs the interval is wide and its coverage rough.

    Raises:
        ValueError: lengths differ, a value is not finite, or fewer than 3 pairs.
    """
    a, b = _vector(x, "x"), _vector(y, "y")
    if len(a) != len(b):
        raise ValueError(f"`x` and `y` must be paired; found {len(a)} and {len(b)} values.")
    picks = np.random.default_rng(seed).integers(0, len(a), (resamples, len(a)))
    return _interval(float(_spearman(a[None], b[None])[0]), _spearman(a[picks], b[picks]), level, len(a))


def left_out_errors(columns: Sequence[Any], y: Any, groups: Sequence[Any]) -> Floats:
    """Mean squared error on each group of y (n,), predicted by least squares on all other groups.

    The fit has a constant. Groups come in the order of their first value, so that two choices of columns can
    be compared group by group.

    Args:
        columns: predictors, (n,) each; none: the mean of the other groups predicts.
        y: values to predict.
        groups: a label for each value; at least two different ones.

    Raises:
        ValueError: lengths differ, a value is not finite, or fewer than two groups.
    """
    target = _vector(y, "y")
    design = np.column_stack([np.ones(len(target)), *(_vector(column, "columns") for column in columns)])
    labels = _texts(groups)
    names = list(dict.fromkeys(labels.tolist()))
    if len(labels) != len(target) or len(names) < 2:
        raise ValueError(
            f"`groups` must label each of the {len(target)} values with one of two groups or more; found "
            f"{len(labels)} labels of {len(names)}."
        )
    errors = []
    for name in names:
        out = labels == name
        weights = np.linalg.lstsq(design[~out], target[~out], rcond=None)[0]
        errors.append(np.mean((target[out] - design[out] @ weights) ** 2))
    return np.array(errors)


def _spearman(a: Floats, b: Floats) -> Floats:
    """Return the rank correlation of each row of a and b (m, n), (m,); NaN where a row has no spread."""
    x, y = (rankdata(v, axis=1) - (v.shape[1] + 1) / 2 for v in (a, b))  # about their mean, exactly
    spread = np.sum(x**2, axis=1) * np.sum(y**2, axis=1)
    found: Floats = np.sum(x * y, axis=1) / np.sqrt(np.where(spread > 0, spread, np.nan))
    return found


def _about_means(columns: list[Floats], group: NDArray[np.int64], weight: Floats) -> float:
    total = np.bincount(group, weight)
    x, y, *others = (
        v - (np.bincount(group, weight * v) / np.where(total > 0, total, 1))[group] for v in columns
    )
    for z in others:
        square = weight @ z**2
        if square > _TINY:
            x, y = (v - z * (weight @ (v * z)) / square for v in (x, y))
    spread = (weight @ x**2) * (weight @ y**2)
    floor = _TINY**2 * (weight @ columns[0] ** 2) * (weight @ columns[1] ** 2)
    return float(weight @ (x * y) / np.sqrt(spread)) if spread > floor else float("nan")


def _interval(estimate: float, found: Floats, level: float, n: int) -> Interval:
    kept = found[np.isfinite(found)]
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(kept, tails) if len(kept) else (np.nan, np.nan)
    return Interval(estimate, float(low), float(high), level, n)


def _texts(labels: Sequence[Any]) -> NDArray[np.str_]:
    return np.array([str(label) for label in labels])


def _vector(values: Any, name: str, least: int = 3) -> Floats:
    tensor = as_vector(values, name)
    check_finite(tensor, name)
    if len(tensor) < least:
        raise ValueError(f"`{name}` must hold at least {least} values; found {len(tensor)}.")
    result: Floats = tensor.detach().cpu().numpy()
    return result
