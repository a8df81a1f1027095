"""The numbers by which every post-hoc method is judged, and which differences over seeds are more than luck.

Sigma is never alone here: a random guesser has sigma 0 (see `lt_lib.posthoc.gaming`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor

from lt_lib._checks import as_tensor, check_choice, check_labels
from lt_lib.comparison import holm
from lt_lib.metrics import Paired, accuracy, paired_comparison
from lt_lib.metrics.calibration_error import calibration_error, negative_log_likelihood
from lt_lib.posthoc.adjustment import check_logits

NUMBERS = ("plain", "balanced", "sigma", "worst", "nll", "ece")


@dataclass(frozen=True)
class Measured:
    """How a classifier does on a set of images."""

    plain: float  # correct / n
    balanced: float  # mean of the per-class accuracies
    sigma: float  # population standard deviation of the same
    worst: float  # smallest of the same
    worst_class: int  # the class that has it, the first of several
    nll: float  # mean negative log likelihood over images, in nats
    ece: float  # expected calibration error in 15 bins
    per_class: Tensor  # (C,) float64, nan for an absent class
    counts: Tensor  # (C,) int64, images a class

    def row(self) -> dict[str, float]:
        """Return the numbers by name, for a table."""
        return {name: float(getattr(self, name)) for name in NUMBERS}


def evaluation(logits: Any, labels: Any, classes: int) -> Measured:
    """Return accuracy, its spread over classes, likelihood and calibration error of logits (n, C).

    Args:
        logits: (n, C), not probabilities.
        labels: (n,) in 0..C-1.
        classes: C.

    Raises:
        ValueError: shapes or labels that do not fit, logits that are not finite or are probabilities.
    """
    values = check_logits(logits).detach().cpu()
    truth = check_labels(as_tensor(labels, "labels").detach().cpu(), classes)
    found = accuracy(values, truth, classes)
    return Measured(
        found.plain,
        found.balanced,
        found.sigma,
        found.worst,
        int(found.per_class.nan_to_num(2.0).argmin()),
        negative_log_likelihood(values, truth),
        calibration_error(values, truth),
        found.per_class,
        truth.bincount(minlength=classes),
    )


@dataclass(frozen=True)
class Comparison:
    """One number of one method against the baseline's, seed by seed."""

    method: str
    number: str  # of NUMBERS
    paired: Paired  # method minus baseline
    p_value: float  # Student's t on the paired differences, two-sided
    adjusted: float  # Holm's, over all tests of the call

    def verdict(self, level: float = 0.05) -> str:
        """Say "higher", "lower" or "not distinguishable" by the adjusted p-value."""
        if not self.adjusted <= level:
            return "not distinguishable"
        return "higher" if self.paired.difference.estimate > 0 else "lower"


def compare(
    measured: Mapping[str, Sequence[Measured]],
    baseline: str,
    numbers: Sequence[str] = ("balanced", "sigma"),
    level: float = 0.95,
) -> list[Comparison]:
    """Test each method against the baseline, for each number; Holm's correction over all these tests.

    Student's t on the paired differences: a sign-flip test, which assumes less and is kept beside it in
    `paired`, cannot go below 2^(1 - n) with n seeds and so decides nothing for a handful. Differences that
    are all equal have no spread to judge by: p is 1.

    Args:
        measured: for each method its results, entry i of all methods from the same seed (base model).
        baseline: the method to compare with.
        numbers: of `NUMBERS`.
        level: nominal coverage of the intervals, which are not corrected.

    Raises:
        ValueError: the baseline is not there, it stands alone, a number is unknown, fewer than 2 seeds, or
            methods with different numbers of seeds.
    """
    check_choice(baseline, measured, "baseline")
    others = [name for name in measured if name != baseline]
    if not others or not numbers:
        raise ValueError("`measured` must hold a method beside the baseline, and `numbers` one to compare.")
    tests = []
    for method in others:
        for number in numbers:
            check_choice(number, NUMBERS, "numbers")
            a, b = ([getattr(m, number) for m in measured[name]] for name in (method, baseline))
            tests.append((method, number, paired_comparison(a, b, level), _student(a, b)))
    adjusted = holm([test[3] for test in tests])
    return [Comparison(*test, float(p)) for test, p in zip(tests, adjusted, strict=True)]


def _student(a: list[float], b: list[float]) -> float:
    d = np.subtract(a, b)
    if np.ptp(d) <= 1e-12 * np.abs([a, b]).max():
        return 1.0
    return float(stats.ttest_1samp(d, 0.0).pvalue)
