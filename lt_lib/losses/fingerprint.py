"""What does a loss optimise? The effective coefficient of each class's mean loss, by autograd."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_finite
from lt_lib.losses._base import check_features
from lt_lib.reweighting._entry import LabelCheck, check_batch, cross_entropy

_ROUNDING = 1e-13  # a gradient below this share of cross-entropy's is rounding: float64 sums have some 1e-16


@dataclass(frozen=True)
class Fingerprint:
    """What a loss F does to the class mean losses L_c of one batch; NaN rows for absent classes.

    The gradient of F in the logits is a_c times that of L_c in each class, plus a residual. `explained` tells
    how far the first part is the whole story: NaN where F has no gradient at all.
    """

    coefficients: Tensor  # (C,) a_c, float64
    relative: Tensor  # (C,) a_c over their mean; NaN if that is 0
    explained: Tensor  # (C,) share of the squared gradient that a_c explains, 0..1
    total_explained: float  # the same over all classes
    residual_mean: Tensor  # (C, C) row c: residual summed over the samples of c, a pull on each logit
    value: float  # of F
    absent: tuple[int, ...]  # classes without a sample


@torch.enable_grad()
def fingerprint(
    loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, features: Tensor | None = None
) -> Fingerprint:
    r"""Measure the effective coefficients of a loss that is a black box on logits.

    With :math:`g_i = \partial F/\partial z_i` by autograd and :math:`e_i = p_i - e_{y_i}`, the gradient of a
    sample's cross-entropy, the coefficient of class c is the least-squares fit of g by e over its samples,

    .. math::

       a_c = n_c\,\frac{\sum_{i\in c}\langle g_i, e_i\rangle}{\sum_{i\in c}\lVert e_i\rVert^2},\qquad
       R_c^2 = 1 - \frac{\sum_{i\in c}\lVert g_i - \tfrac{a_c}{n_c} e_i\rVert^2}
                        {\sum_{i\in c}\lVert g_i\rVert^2},

    since :math:`L_c = \frac1{n_c}\sum_{i\in c}\mathrm{CE}_i` has the gradient :math:`e_i/n_c`. What follows:

    - a is linear in F, since autograd is and the fit is.
    - If F is a differentiable function of the class mean losses, then :math:`g_i = F_c\,e_i/n_c` with
      :math:`F_c = \partial F/\partial L_c`, so a_c = F_c exactly and R^2 = 1. All of Theorem T2 is of this
      kind, with weights stopped or not: released inverse reweighting at alpha = 0 without an active clamp
      gives s / |P| for each class present, its sample-mean reading s n_c / B, a constant mean 0, and
      stop-gradient n_c beta_c mean / (B L_c).
    - If F weighs samples by anything else, a_c is the weighted mean of n_c times the weights, by
      :math:`\lVert e_i\rVert^2`, and R^2 tells how unequal they are (focal loss, influence balance).
    - If F is no weighted cross-entropy, the residual tells what it does besides. Logit adjustment (tau = 1)
      at equal logits leaves on logit k of a sample of class c a residual proportional to
      :math:`\pi_k - (1 - \pi_c)/(C - 1)`: head logits are pushed down, for every class, and tail logits up.

    By the chain rule the same holds for the gradient in any parameters before the logits, as long as F sees
    them through the logits alone; a loss of features (`ib`, `dr`) is measured at fixed features.

    Args:
        loss: called as ``loss(logits, labels)``, or with `features` as a third argument if they are given;
            returns a scalar. A module is copied first, so that counts and records of yours stay; its mode and
            epoch are those that it has. A deferred loss is measured as the one in force.
        logits: (B, C), best of one training batch, since losses look at the batch.
        labels: (B,).
        features: (B, d), for losses of the recipe "features".

    Returns:
        The coefficients and what they leave out, float64 on the CPU.

    Raises:
        ValueError: a shape does not fit, a label is outside 0..C-1, the loss is of several views, its value
            is no scalar with a gradient, a gradient is not finite, or the samples of a class are fitted so
            well that cross-entropy has no gradient to compare with.
    """
    labels, point = _enter(logits, labels)
    value = _evaluate(loss, point, labels, features)
    (gradient,) = torch.autograd.grad(value, point, allow_unused=True)
    gradient = torch.zeros_like(point) if gradient is None else gradient
    check_finite(gradient, "gradient of the loss")
    (own,) = torch.autograd.grad(cross_entropy(point, labels, "mean"), point)
    return _fit(gradient.cpu(), own.cpu() * len(labels), labels.cpu(), float(value.detach()))


def _enter(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    classes = logits.shape[1] if isinstance(logits, Tensor) and logits.ndim == 2 else 1
    labels = check_batch(logits, labels, classes)
    LabelCheck().first(labels, classes)
    check_finite(logits, "logits")
    return labels, logits.detach().to(torch.float64).requires_grad_()


def _evaluate(loss: Callable[..., Tensor], point: Tensor, labels: Tensor, features: Any) -> Tensor:
    recipe = getattr(loss, "recipe", "plain")
    if recipe not in ("plain", "features"):
        raise ValueError(
            f"A fingerprint needs a loss on logits; found one of the recipe `{recipe}`, which is spread over "
            "several views or a second batch. Measure its classification term alone."
        )
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss)
    more = (
        () if features is None else (check_features(features, labels, type(loss).__name__).detach().double(),)
    )
    value = loss(point, labels, *more)
    if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
        found = type(value).__name__
        if isinstance(value, Tensor):
            found = f"shape {tuple(value.shape)}" if value.ndim else "one without gradient"
        raise ValueError(
            f"`loss` must return a scalar tensor that torch can differentiate in the logits; found {found}. "
            "Return the mean over the batch, not detached."
        )
    return value


def _fit(gradient: Tensor, own: Tensor, labels: Tensor, value: float) -> Fingerprint:
    classes = gradient.shape[1]

    def total(of: Tensor) -> Tensor:
        return of.new_zeros((classes, *of.shape[1:])).index_add(0, labels, of)

    counts = total(torch.ones(len(labels), dtype=torch.float64))
    energy, all_energy = total(own.square().sum(1)), total(gradient.square().sum(1))
    flat = ((energy == 0) & (counts > 0)).nonzero().flatten().tolist()
    if flat:
        raise ValueError(
            f"Class {flat[0]} is fitted perfectly: its cross-entropy has no gradient, so its coefficient is "
            "undefined. Take a batch from earlier in training, or leave the class out."
        )
    slope = total((gradient * own).sum(1)) / energy  # a_c / n_c; NaN for an absent class
    residual = gradient - slope[labels, None] * own
    missed = total(residual.square().sum(1))
    felt = all_energy > (_ROUNDING / len(labels)) ** 2 * energy
    coefficients = counts * slope
    mean = coefficients.nanmean()
    return Fingerprint(
        coefficients,
        coefficients / mean if bool(felt.any()) and float(mean) else torch.full_like(coefficients, torch.nan),
        torch.where(felt, 1 - missed / all_energy, torch.nan),
        float(1 - missed.sum() / all_energy.sum()) if bool(felt.any()) else float("nan"),
        torch.where(counts[:, None] > 0, total(residual), torch.nan),
        value,
        tuple((counts == 0).nonzero().flatten().tolist()),
    )
