"""The closed form of inverse reweighting and its peak (arXiv 2605.10047, Theorem T2)."""

import math
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_vector, check_finite
from lt_lib.reweighting._entry import check_number


def _nonnegative(vector: Tensor, name: str) -> Tensor:
    check_finite(vector, name)
    negative = (vector < 0).nonzero().flatten().tolist()
    if negative:
        raise ValueError(
            f"`{name}` must not be negative; found {float(vector[negative[0]]):g} for class {negative[0]}. "
            "Pass mean losses and weights, which are at least 0."
        )
    return vector


def tikhonov(class_loss: Tensor, mean_loss: Tensor, alpha: float, prior: Tensor, eps: float = 0.0) -> Tensor:
    """Evaluate (mean_loss L_c + alpha prior_c) / (L_c^2 + alpha + eps) without any check.

    At alpha = eps = 0 it is mean_loss / L_c, and `prior` where L_c = 0: neither NaN nor infinite, in value
    and in gradient. No value is read, so nothing waits for a device.
    """
    if alpha == 0 and eps == 0:
        zero = class_loss.detach() <= 0
        return torch.where(zero, prior, mean_loss / class_loss.masked_fill(zero, 1.0))
    target = mean_loss * class_loss
    if alpha:
        target = torch.add(target, prior, alpha=alpha)
    return target / (class_loss * class_loss + (alpha + eps))


def tikhonov_relative(
    class_loss: Tensor, mean_loss: Tensor, alpha: float, prior: Tensor, eps: float = 0.0
) -> Tensor:
    """Evaluate `tikhonov` at the regulariser alpha mean_loss^2, a constant of the batch, without any check.

    So alpha is a pure number, and weights do not change when all losses are multiplied by one. `prior`
    where mean loss and class loss are 0. No value is read.
    """
    ridge = alpha * mean_loss.detach().square()
    denominator = class_loss * class_loss + (ridge + eps)
    zero = denominator.detach() <= 0
    weights = (mean_loss * class_loss + ridge * prior) / denominator.masked_fill(zero, 1.0)
    return torch.where(zero, prior, weights)


def inverse_weights(
    class_loss: Any, mean_loss: Any = None, alpha: float = 0.0, prior: Any = None
) -> Tensor:  # (C,) float64
    r"""Weights that solve the Tikhonov-regularised inverse problem, one a class.

    .. math::

       w_c^* = \arg\min_w\,(w L_c - \bar L)^2 + \alpha\,(w - w_c^{(0)})^2
             = \frac{\bar L L_c + \alpha w_c^{(0)}}{L_c^2 + \alpha}

    the closed form of arXiv 2605.10047. The minimiser is unique when L_c^2 + alpha > 0. It is a convex
    combination of mean_loss / L_c and the prior (Theorem T2), so it lies between them: alpha -> infinity
    gives the prior, alpha -> 0 gives mean_loss / L_c, and L_c -> 0 at fixed alpha > 0 gives the prior. At
    L_c = alpha = 0 it is undefined and refused; `InverseReweighting` falls back to the prior there, and
    counts it.

    Args:
        class_loss: mean loss L_c of each class, (C,), finite and at least 0 (nats for a cross-entropy).
        mean_loss: the target, one number at least 0 in the same unit; None is the mean over classes.
        alpha: regularisation, at least 0, in units of a squared loss.
        prior: prior weight of each class, (C,), at least 0, used as given; None is one for every class.

    Returns:
        Weights (C,), float64, on the device of `class_loss` and differentiable in it if it is a tensor.

    Raises:
        ValueError: a number is negative or not finite, a length is wrong, or a class loss is 0 with alpha =
        0.

    The released code differs: it adds 1e-8 to the denominator, multiplies by the macro factor and clamps to
    0..10; `InverseReweighting.as_released` does all three.
    """
    alpha = check_number(alpha, "alpha", low=0)
    losses = _nonnegative(as_vector(class_loss, "class_loss"), "class_loss")
    target = (
        losses.mean()
        if mean_loss is None
        else torch.as_tensor(mean_loss, dtype=losses.dtype, device=losses.device)
    )
    if target.ndim or not bool(torch.isfinite(target)) or bool(target < 0):
        raise ValueError(f"`mean_loss` must be one finite number, at least 0; found {mean_loss!r}.")
    weights0 = torch.ones_like(losses)
    if prior is not None:
        weights0 = _nonnegative(as_vector(prior, "prior", len(losses)).to(losses.device), "prior")
    zero = (losses == 0).nonzero().flatten().tolist()
    if alpha == 0 and zero:
        raise ValueError(
            f"Class {zero[0]} has loss 0, so with alpha = 0 its weight is undefined ({len(zero)} such "
            "classes). Pass alpha > 0, which gives it the prior weight, or leave the class out."
        )
    weights = tikhonov(losses, target, alpha, weights0)
    if bool(torch.isfinite(weights).all()):
        return weights
    # a square or a product overflowed: the same combination in terms of hypot(L_c, sqrt(alpha))
    length = torch.hypot(losses, losses.new_tensor(alpha).sqrt())
    return losses / length * (target / length) + (math.sqrt(alpha) / length).square() * weights0


def weight_peak(mean_loss: float, alpha: float, prior: float = 1.0) -> tuple[float, float]:
    r"""Class loss L_0 at which the weight is largest, and that weight, at a fixed mean loss.

    .. math::

       L_0 = \frac{\sqrt{\alpha^2 w_0^2 + \alpha \bar L^2} - \alpha w_0}{\bar L},\qquad
       w_{\max} = \frac{\bar L}{2 L_0}

    The weight rises from the prior at L_c = 0 to w_max at L_0 and falls to 0 beyond (Theorem T2): a harder
    class than L_0 gets *less* weight. For small alpha, L_0 is about sqrt(alpha). At alpha = 0 the peak is
    infinite, at 0.

    Args:
        mean_loss: the target, at least 0.
        alpha: regularisation, at least 0.
        prior: prior weight, at least 0.

    Returns:
        (L_0, w_max).

    Raises:
        ValueError: an argument is negative or not finite.
    """
    mean_loss = check_number(mean_loss, "mean_loss", low=0)
    alpha = check_number(alpha, "alpha", low=0)
    prior = check_number(prior, "prior", low=0)
    if mean_loss == 0:
        return 0.0, prior
    if alpha == 0:
        return 0.0, math.inf
    # the difference moved to the denominator, without cancellation, and no square of an argument
    largest = prior / 2 + math.hypot(prior, mean_loss / math.sqrt(alpha)) / 2
    if prior == 0 or math.isinf(largest):
        return math.sqrt(alpha), largest
    return mean_loss / largest / 2, largest
