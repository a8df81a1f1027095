"""Keep a step or take it back: the rollback rule of the loop."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lt_lib._checks import as_vector, check_finite

_ROUNDING = 1e-9  # shares of a few thousand images are told apart, and 0.93 - 0.86 does not exceed 0.07


@dataclass(frozen=True)
class Verdict:
    """What became of one candidate, judged on the calibration images."""

    accepted: bool
    reason: str  # a sentence
    sigma_before: float  # population standard deviation of the class accuracies
    sigma_after: float
    drop: float  # largest loss of accuracy of a single class, at least 0


def judge(before: Any, after: Any, sigma: float | None = 0.005, drop: float | None = 0.07) -> Verdict:
    r"""Accept unless :math:`\sigma` rises by more than `sigma` or a class loses more than `drop`.

    The paper's rule (arXiv 2605.07790) with its numbers; the released headline run looks at :math:`\sigma`
    alone (`drop=None`).

    Args:
        before: accuracies of the classes at the weights that are kept so far, (C,).
        after: the same at the candidate, (C,).
        sigma: allowed rise; None: any.
        drop: allowed loss of one class; None: any.

    Raises:
        ValueError: an accuracy is NaN or infinite, or lengths differ.
    """
    old = as_vector(before, "before")
    new = as_vector(after, "after", classes=len(old))
    check_finite(old, "before")
    check_finite(new, "after")
    was, now = spread(old), spread(new)
    lost = max(0.0, float((old - new).max()))
    complaint = _complaint(now - was, lost, old - new, sigma, drop)
    return Verdict(complaint is None, complaint or _praise(was, now), was, now, lost)


def spread(per_class: Tensor) -> float:
    """Return the population standard deviation of the class accuracies (C,)."""
    return float(per_class.double().std(correction=0))


def _complaint(
    rise: float, lost: float, losses: Tensor, sigma: float | None, drop: float | None
) -> str | None:
    if sigma is not None and rise > sigma + _ROUNDING:
        return f"Rolled back: sigma rose by {rise:.4f}, more than {sigma:g}."
    if drop is not None and lost > drop + _ROUNDING:
        return f"Rolled back: class {int(losses.argmax())} lost {lost:.4f}, more than {drop:g}."
    return None


def _praise(was: float, now: float) -> str:
    return f"Accepted: sigma went from {was:.4f} to {now:.4f}."
