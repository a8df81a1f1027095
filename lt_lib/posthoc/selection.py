"""The choice of tau on calibration data, by a grid and a rule that are fixed in advance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, check_choice, check_counts, check_labels
from lt_lib.metrics import accuracy
from lt_lib.posthoc.adjustment import check_logits
from lt_lib.reweighting._entry import check_number

TAUS: tuple[float, ...] = tuple(step / 10 for step in range(21))  # the grid of Kang et al.'s script
MEASURES = ("balanced_accuracy", "log_likelihood")


@dataclass(frozen=True)
class TauChoice:
    """The chosen tau, and how every value of the grid did on the calibration data."""

    tau: float
    grid: Tensor  # (T,) float64, rising
    scores: Tensor  # (T,) float64, higher is better
    measure: str


def choose_tau(
    logits_of: Callable[[float], Any],
    labels: Any,
    classes: int,
    grid: Sequence[float] = TAUS,
    measure: str = "balanced_accuracy",
) -> TauChoice:
    """Return the tau of `grid` that does best on calibration data; of equals, the smallest.

    Calibration data are images that were neither trained on nor are used to report results: a value chosen on
    test data flatters, one chosen on training data sees nothing, since the network fits them.

    Args:
        logits_of: gives the calibration images' logits (n, C) at a tau, such as
            `lambda tau: logit_adjustment(logits, class_counts, tau)`.
        labels: of the calibration images, (n,); each class must be there.
        classes: C.
        grid: values to try; by default 0, 0.1, ..., 2.
        measure: "balanced_accuracy" (mean of the recalls), or "log_likelihood" (mean over classes of the
            class's mean log probability, in nats; needs fewer images, but also answers to the logits' scale).

    Raises:
        ValueError: there are no calibration images, a class is not among them, the grid is empty or holds
            something else than finite numbers, `measure` is unknown, or `logits_of` returns something else
            than (n, C) for the n labels and C classes.
    """
    check_choice(measure, MEASURES, "measure")
    truth = check_calibration(labels, classes)
    taus = sorted({check_number(tau, "grid") for tau in grid})
    if not taus:
        raise ValueError("`grid` holds no value of tau to try. Pass some, such as `lt_lib.posthoc.TAUS`.")
    score = _balanced_accuracy if measure == "balanced_accuracy" else _log_likelihood
    scores = [score(_fitting(logits_of(tau), truth, classes), truth, classes) for tau in taus]
    best = max(range(len(taus)), key=lambda i: (scores[i], -i))
    tried, reached = (torch.tensor(values, dtype=torch.float64) for values in (taus, scores))
    return TauChoice(taus[best], tried, reached, measure)


def check_calibration(labels: Any, classes: int) -> Tensor:
    """Return the labels of calibration images (n,) as int64.

    Raises:
        ValueError: there are none (None, or an empty tensor), one is outside 0..C-1, or a class is absent.
    """
    if labels is None or as_tensor(labels, "labels").numel() == 0:
        raise ValueError(
            "There are no calibration images, and this choice must not be made on test data: set some aside "
            "with `split(source, calibration=20)`, or pass a value that is fixed in advance."
        )
    truth = check_labels(as_tensor(labels, "labels").detach().cpu(), classes)
    check_counts(torch.bincount(truth, minlength=classes), "labels")
    return truth


def _fitting(logits: Any, labels: Tensor, classes: int) -> Tensor:
    values = check_logits(logits)
    if tuple(values.shape) != (len(labels), classes):
        raise ValueError(
            f"`logits_of` must return (n, C) = ({len(labels)}, {classes}): a row for each calibration image "
            f"and a column for each class; found {tuple(values.shape)}."
        )
    return values


def _balanced_accuracy(logits: Tensor, labels: Tensor, classes: int) -> float:
    return float(accuracy(logits, labels, classes).balanced)


def _log_likelihood(logits: Tensor, labels: Tensor, classes: int) -> float:
    right = logits.detach().cpu().double().log_softmax(1).gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(classes, dtype=torch.float64).index_add(0, labels, right)
    return float((sums / torch.bincount(labels, minlength=classes)).mean())
