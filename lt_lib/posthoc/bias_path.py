r"""Families of logit biases between no change and the fitted one, and the one with equal recalls.

By Theorem T5, with true posteriors every trade-off between recalls that no rule beats is a bias
:math:`\log(a_c/\pi_c)` for some multipliers :math:`a_c\ge0`. One fitted bias is one point; surgery is
compared with whole families.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib.metrics import accuracy
from lt_lib.posthoc.adjustment import check_logits
from lt_lib.posthoc.scaling import Scaling, fit_logit_bias
from lt_lib.posthoc.selection import check_calibration
from lt_lib.reweighting._entry import check_number


@dataclass(frozen=True)
class BiasPath:
    """Biases in order, and how each does on the images that they were fitted to."""

    shifts: Tensor  # (S, C) float64, each of sum 0, in nats; the first is 0
    losses: Tensor  # (S,) float64: balanced negative log likelihood
    balanced: Tensor  # (S,) float64: balanced accuracy
    sigma: Tensor  # (S,) float64
    worst: Tensor  # (S,) float64: least recall
    steps: tuple[int, ...]  # iterations made to reach each

    def scaling(self, index: int) -> Scaling:
        """Return one bias as a change of logits."""
        shift = self.shifts[index]
        return Scaling(torch.ones_like(shift), shift, float(self.losses[index]), float("nan"))

    def least_sigma(self) -> int:
        """Return the position of the least sigma; of equals, that of the greatest balanced accuracy."""
        return min(range(len(self.sigma)), key=lambda i: (float(self.sigma[i]), -float(self.balanced[i])))


def bias_path(logits: Any, labels: Any, steps: int = 1024, rate: float = 1.0) -> BiasPath:
    r"""Return the logit bias along gradient descent on the balanced negative log likelihood, from 0.

    :math:`t\leftarrow t-2\,\text{rate}\,\nabla_tL(t)`, :math:`L` the mean over classes of the class's mean of
    :math:`-\log\mathrm{softmax}_y(z+t)`. The Hessian of L is a mean of :math:`\mathrm{diag}(p)-pp^\top`,
    whose eigenvalues are at most 1/2, so with `rate` at most 1 no step raises the loss and the path ends at
    `fit_logit_bias`. An early point is a bias fit that is stopped early: closer to the plain classifier, so
    with more accuracy where large classes dominate, and more sigma. Kept are 0, 1, 2, 4, 8, ... steps.

    Args:
        logits: of calibration images, (n, C).
        labels: of the images, (n,), each class there.
        steps: the last.
        rate: in (0, 1].

    Raises:
        ValueError: see `choose_tau`; or `steps` or `rate` out of range.
    """
    values, truth = _enter(logits, labels)
    size = 2 * check_number(rate, "rate", low=0, high=1, open_low=True)
    wanted = {0, *(2**i for i in range(int(steps).bit_length()) if 2**i <= steps), _whole(steps, "steps")}
    weights = _balanced(truth, values.shape[1])
    shift, kept = torch.zeros(values.shape[1], dtype=torch.float64), []
    for step in range(max(wanted) + 1):
        if step in wanted:
            kept.append((step, shift - shift.mean()))
        p = (values + shift).softmax(1)
        p[torch.arange(len(truth)), truth] -= 1
        shift = shift - size * (weights @ p)
    return _judged(values, truth, kept)


def equal_recall_path(logits: Any, labels: Any, steps: int = 200, rate: float = 2.0) -> BiasPath:
    r"""Return biases that drive the recalls on the calibration images together, from the balanced fit on.

    Multiplicative weights on the multipliers of Theorem T5: :math:`a_c\leftarrow a_c\exp(\eta_k(\bar R-R_c))`
    with the recalls R of the present rule and :math:`\eta_k=\text{rate}/\sqrt k`, so the bias moves by
    :math:`\eta_k(\bar R-R_c)`. Where all recalls can be equal they become so, which is the max-min point:
    sigma 0 on the calibration images but for the grain of whole images. `least_sigma()` picks the point with
    the least sigma seen. It is the bias that games sigma best, so hold it against balanced accuracy too.

    Args:
        logits: of calibration images, (n, C).
        labels: of the images, (n,), each class there.
        steps: the last; every step is kept, and before them no change at all.
        rate: of the first step, in nats for a recall that is 1 below the mean.

    Raises:
        ValueError: see `choose_tau`; `steps` or `rate` out of range, or the balanced fit did not converge.
    """
    values, truth = _enter(logits, labels)
    first = check_number(rate, "rate", low=0, open_low=True)
    shift = fit_logit_bias(values, truth).shift
    kept = [(0, torch.zeros_like(shift)), (0, shift)]
    for step in range(1, _whole(steps, "steps") + 1):
        recalls = accuracy(values + shift, truth, values.shape[1]).per_class
        shift = shift + first / step**0.5 * (recalls.mean() - recalls)
        kept.append((step, shift))
    return _judged(values, truth, kept)


def _enter(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    values = check_logits(logits).detach().cpu().double()
    truth = check_calibration(labels, values.shape[1])
    if len(truth) != len(values):
        raise ValueError(f"`logits` and `labels` must be equally long; found {len(values)} and {len(truth)}.")
    return values, truth


def _whole(value: int, name: str) -> int:
    number = check_number(value, name, low=1)
    if number != int(number):
        raise ValueError(f"`{name}` must be a whole number; found {value!r}.")
    return int(number)


def _balanced(labels: Tensor, classes: int) -> Tensor:
    counts = torch.bincount(labels, minlength=classes).double()
    return 1 / (classes * counts[labels])


def _judged(logits: Tensor, labels: Tensor, kept: list[tuple[int, Tensor]]) -> BiasPath:
    weights, rows = _balanced(labels, logits.shape[1]), torch.arange(len(labels))
    found = [accuracy(logits + shift, labels, logits.shape[1]) for _, shift in kept]
    losses = [-weights @ (logits + shift).log_softmax(1)[rows, labels] for _, shift in kept]
    balanced, sigma, worst = (
        torch.tensor([getattr(f, name) for f in found], dtype=torch.float64)
        for name in ("balanced", "sigma", "worst")
    )
    shifts = torch.stack([shift for _, shift in kept])
    return BiasPath(shifts, torch.stack(losses), balanced, sigma, worst, tuple(step for step, _ in kept))
