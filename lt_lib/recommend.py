"""From scores over seeds to advice: which method, by which measure, and how sure that is.

It stands apart from `lt_lib.metrics`, on which trained runs depend, and takes numbers, not runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import stdtr

from lt_lib._checks import as_vector, check_choice, check_counts, check_finite
from lt_lib.comparison import holm
from lt_lib.metrics import Interval, Paired, paired_comparison, seed_interval

MEASURES = ("balanced", "plain", "worst")
SAME = "not distinguishable"
_LEVEL = 0.95
_EVEN = 1.5  # largest over smallest class of a part that counts as balanced
_NAMES = {"balanced": "balanced accuracy", "plain": "plain accuracy", "worst": "the worst class's accuracy"}
_WHY = {
    "balanced": "it is the mean over classes, so a rare class counts as much as a frequent one, and errors "
    "on rare classes are what these methods are for; plain accuracy counts images as the "
    "held-out part has them",
    "plain": "it counts every held-out image alike, so it is right where the data to come have the same "
    "shares of classes as the held-out part, and every error costs the same",
    "worst": "it says what the least served class gets; it is the noisiest of the three, since one class has "
    "few held-out images",
}


@dataclass(frozen=True)
class Advised:
    """One method's row."""

    method: str
    scores: dict[str, Interval]  # by measure, for the mean over seeds
    against: Paired | None  # minus the reference, by the deciding measure; None for the reference itself
    p_value: float | None  # of that difference, after Holm's correction over all methods
    verdict: str  # "higher", "lower", "not distinguishable" or, for the reference, ""
    from_best: str  # against the method with the highest mean: "best", "lower" or "not distinguishable"


@dataclass(frozen=True)
class Recommendation:
    """What the numbers support, and no more."""

    rows: tuple[Advised, ...]  # highest mean first
    measure: str
    why: str  # this measure decides
    best: str  # the method with the highest mean
    alike: tuple[str, ...]  # methods not distinguishable from it, itself left out
    advised: str
    text: str  # a few sentences in Markdown
    notes: tuple[str, ...]  # what limits it

    def table(self) -> str:
        """Return the rows in Markdown: per cent, with 95 % intervals for the mean over seeds."""
        reference = next(row.method for row in self.rows if row.against is None)
        head = ["method", *(f"{_NAMES[m]}, %" for m in MEASURES), f"minus {reference}, points", "verdict"]
        lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
        for row in self.rows:
            cells = [_percent(row.scores[m]) for m in MEASURES]
            cells.append("–" if row.against is None else row.against.difference.text(1, 100))
            verdict = f"{row.verdict} (p = {row.p_value:.2g})" if row.verdict else "reference"
            best = {"best": "best mean", "lower": "below the best"}.get(
                row.from_best, f"{SAME} from the best"
            )
            lines.append(f"| {row.method} | {' | '.join(cells)} | {verdict}; {best} |")
        return "\n".join(lines)


def recommend(
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    measure: str = "balanced",
    reference: str = "CE",
    seconds: Mapping[str, float] | None = None,
    test_counts: Any = None,
    class_names: Sequence[str] | None = None,
) -> Recommendation:
    """Advise a method from accuracies on the held-out part, paired over seeds.

    Every method is compared with the reference, and every pair of methods with each other, by Student's t on
    the paired differences (by signs where all differences are equal), each family of p-values corrected by
    Holm's rule at 5 %. The advice is the method with the highest mean if it is higher than the reference; the
    cheapest of those that cannot be told from it, where `seconds` tells costs; the reference if no method is
    higher than it. Methods are chosen and judged on the same held-out part, which flatters the best a little.

    Args:
        scores: {method: {"balanced", "plain", "worst": one accuracy in 0..1 a seed}}, as
            `lt_lib.runs.compare.Compared.scores` gives them.
        measure: which of the three decides.
        reference: the method that all others are compared with.
        seconds: of a run of each method.
        test_counts: (C,) images of the held-out part, for remarks on what it can resolve.
        class_names: (C,) for the same remarks.

    Raises:
        ValueError: the reference or a measure is missing, fewer than two seeds, scores that are not paired
            or no shares, a method without its seconds, no held-out image, or not a name for each class.
    """
    check_choice(measure, MEASURES, "measure")
    check_choice(reference, scores, "reference")
    values = {m: {name: _scores(found, name, m) for name, found in scores.items()} for m in MEASURES}
    _check_paired(values, scores, reference, seconds)
    order = sorted(scores, key=lambda name: -float(values[measure][name].mean()))
    against = _tests(values[measure], [(name, reference) for name in order if name != reference])
    pairs = _tests(values[measure], list(combinations(order, 2)))
    alone: tuple[Paired | None, float | None, str] = (None, None, "")
    rows = tuple(
        Advised(
            name,
            {m: seed_interval(values[m][name], _LEVEL) for m in MEASURES},
            *against.get((name, reference), alone),
            "best" if name == order[0] else "lower" if pairs[order[0], name][2] == "higher" else SAME,
        )
        for name in order
    )
    alike = tuple(row.method for row in rows if row.from_best == SAME)
    above = [row.method for row in rows if row.verdict == "higher" and row.from_best in ("best", SAME)]
    advised = reference if not above else min(above, key=lambda n: seconds[n]) if seconds else above[0]
    text = _said(rows, measure, reference, alike, advised, seconds is not None)
    notes = _remarks(len(values[measure][reference]), measure, test_counts, class_names)
    return Recommendation(rows, measure, _WHY[measure], order[0], alike, advised, text, notes)


def _tests(
    values: Mapping[str, Any], pairs: list[tuple[str, str]]
) -> dict[Any, tuple[Paired | None, float | None, str]]:
    """Compare each pair; p-values are corrected over all of `pairs`."""
    if not pairs:
        return {}
    found = [paired_comparison(values[a], values[b], _LEVEL) for a, b in pairs]
    corrected = holm([_p_value(values[a] - values[b], one) for (a, b), one in zip(pairs, found, strict=True)])
    words = [
        SAME if p > 1 - _LEVEL else "higher" if one.difference.estimate > 0 else "lower"
        for one, p in zip(found, corrected, strict=True)
    ]
    return {pair: (one, float(p), w) for pair, one, p, w in zip(pairs, found, corrected, words, strict=True)}


def _p_value(differences: Any, paired: Paired) -> float:
    """Two-sided p of Student's t; without any spread, of the signs, since t would claim certainty."""
    low, estimate = paired.difference.low, paired.difference.estimate
    if low == estimate:
        return paired.p_value
    t = estimate / (np.std(differences, ddof=1) / np.sqrt(paired.n))
    return float(2 * stdtr(paired.n - 1, -abs(t)))


def _scores(found: Mapping[str, Sequence[float]], name: str, measure: str) -> Any:
    if measure not in found:
        raise ValueError(f"`scores` of `{name}` must hold {', '.join(MEASURES)}; `{measure}` is missing.")
    vector = as_vector(found[measure], f"scores[{name}][{measure}]")
    check_finite(vector, f"scores[{name}][{measure}]")
    values = vector.numpy()
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"`scores` of `{name}` must be shares in 0..1; found {values.tolist()[:5]}.")
    return values


def _check_paired(
    values: Mapping[str, Mapping[str, Any]],
    methods: Iterable[str],
    reference: str,
    seconds: Mapping[str, float] | None,
) -> None:
    seeds = len(values[MEASURES[0]][reference])
    if seeds < 2:
        raise ValueError(f"`scores` must hold at least two seeds; found {seeds}. Run more seeds.")
    for name in methods:
        found = [len(values[m][name]) for m in MEASURES]
        if set(found) != {seeds}:
            raise ValueError(
                f"`scores` of `{name}` must hold one score for each of the {seeds} seeds of `{reference}`; "
                f"found {', '.join(map(str, found))}. Compare methods by the same seeds."
            )
        if seconds is not None and name not in seconds:
            raise ValueError(f"`seconds` must hold every method; `{name}` is missing. Add it, or pass None.")


def _said(
    rows: tuple[Advised, ...],
    measure: str,
    reference: str,
    alike: tuple[str, ...],
    advised: str,
    by_cost: bool,
) -> str:
    by, what = {row.method: row for row in rows}, _NAMES[measure]
    best, own = rows[0].method, _percent(by[advised].scores[measure])
    others = [name for name in alike if name not in (best, advised)]
    if advised == reference:
        lower = [row.method for row in rows if row.verdict == "lower"]
        words = f"**Keep {reference}** ({what} {own} %): no other method is distinguishably higher than it."
        if best != reference:
            words += f" The highest mean is that of {best}, {SAME} from {reference}."
        return words + (f" Distinguishably lower: {', '.join(lower)}." if lower else "")
    gain = by[advised].against
    assert gain is not None
    words = (
        f"**Use {advised}** ({what} {own} %): {gain.difference.text(1, 100)} points above {reference}, after "
        f"correction for all methods tried (p = {by[advised].p_value:.2g})."
    )
    if advised != best:
        words += f" The highest mean is that of {best}, {SAME} from it"
        words += "; of those above the reference it takes the least time." if by_cost else "."
    return words + (f" Likewise {SAME} from the best: {', '.join(others)}." if others else "")


def _remarks(seeds: int, measure: str, counts: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    notes = [
        f"Intervals and tests rest on {seeds} seeds: they cover chance in training, not the choice of the "
        f"held-out images. `{SAME}` does not mean equal."
    ]
    if seeds < 5:
        notes[0] += f" With {seeds} seeds only differences well above the spread over seeds can be told."
    if counts is None:
        return tuple(notes)
    held = check_counts(counts, "test_counts", minimum=0)
    present = held[held > 0]
    if len(present) == 0 or (names is not None and len(names) != len(held)):
        named = "no names" if names is None else f"{len(names)} names"
        raise ValueError(
            "`test_counts` must hold the images of each class, of one at least, and `class_names` a name for "
            f"each; found {held.tolist()[:10]} with {named}. Take both from the split."
        )
    if int(present.max()) <= _EVEN * int(present.min()):
        notes.append("The held-out part is nearly balanced, so plain and balanced accuracy nearly agree.")
    else:
        notes.append(
            f"The held-out part is imbalanced, too ({int(present.max())} to {int(present.min())} images a "
            "class): plain accuracy is mostly that of its frequent classes."
        )
    rarest = int(present.min())
    where = int((held == rarest).nonzero()[0])
    label = names[where] if names is not None else f"class {where}"
    notes.append(
        f"The smallest held-out class, {label}, has {rarest} images: one of them moves its accuracy by "
        f"{100 / rarest:.1f} points."
    )
    return tuple(notes)


def _percent(interval: Interval) -> str:
    cut = Interval(
        interval.estimate, max(interval.low, 0.0), min(interval.high, 1.0), interval.level, interval.n
    )
    return cut.text(1, 100)
