"""What does a loss optimise? The effective coefficient of each class's mean loss, by autograd."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_finite
from lt_lib.losses._base import check_features
from lt_lib.reweighting._entry import LabelCheck, check_batch, cross_entropy

_ROUNDING = 1e-13  # a gradient below this share of cross-entropy's is rounding: float64 sums have some 1e-16
_REPEATS = 1e-5  # differences of a repeated call above this share are no rounding of a device's sums


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
            returns a scalar. A module is copied first, in float64, so that counts and records of yours stay;
            its mode and epoch are those that it has. A function is called as it is, in float32 if its
            constants refuse float64. All is evaluated twice, and the global random state stays. A deferred
            loss is measured as the one in force.
        logits: (B, C), best of one training batch, since losses look at the batch.
        labels: (B,).
        features: (B, d), for losses of the recipe "features".

    Returns:
        The coefficients and what they leave out, float64 on the CPU.

    Raises:
        ValueError: a shape does not fit, a label is outside 0..C-1, the loss cannot be called so or is of
            several views, its value is no real scalar with a gradient, is NaN, or differs between two
            calls, a gradient is not finite, or the samples of a class are fitted so well that cross-entropy
            has no gradient to compare with.
    """
    labels, point = _enter(logits, labels)
    more = _check_call(loss, labels, features)
    value, gradient = _measured(loss, point, labels, more)
    check_finite(gradient, "gradient of the loss")
    (own,) = torch.autograd.grad(cross_entropy(point, labels, "mean"), point)
    return _fit(gradient.cpu(), own.cpu() * len(labels), labels.cpu(), value)


def _enter(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    classes = logits.shape[1] if isinstance(logits, Tensor) and logits.ndim == 2 else 1
    labels = check_batch(logits, labels, classes)
    LabelCheck().first(labels, classes)
    check_finite(logits, "logits")
    return labels, logits.detach().to(torch.float64).requires_grad_()


def _check_call(loss: Any, labels: Tensor, features: Any) -> tuple[Tensor, ...]:
    """Return what `loss` takes beside logits and labels; refuse what cannot be called with them."""
    if isinstance(loss, type) or not callable(loss):
        found = f"the class {loss.__name__}" if isinstance(loss, type) else repr(loss)
        raise ValueError(
            f"`loss` must be called as `loss(logits, labels)`; found {found}. Pass an instance or a "
            "function, for example `make_loss(name, class_counts)`."
        )
    recipe = getattr(loss, "recipe", "plain")
    if recipe not in ("plain", "features"):
        raise ValueError(
            f"A fingerprint needs a loss on logits; found one of the recipe `{recipe}`, which is spread over "
            "several views or a second batch. Measure its classification term alone."
        )
    given = () if features is None else (check_features(features, labels, type(loss).__name__).detach(),)
    try:
        inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).bind(labels, labels, *given)
    except TypeError as error:
        names = "(logits, labels, features)" if given else "(logits, labels)"
        raise ValueError(
            f"`loss` cannot be called as `loss{names}`: {error}. "
            f"{'Leave `features` out' if given else 'Pass what it needs'}, or wrap it in a function that can."
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    return given


def _measured(loss: Any, point: Tensor, labels: Tensor, more: tuple[Tensor, ...]) -> tuple[float, Tensor]:
    """Return value and gradient (B, C) of `loss`, in float64 if it can; refuse one that differs twice."""
    devices = [point.device] if point.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        one, two = (_evaluate(loss, point, labels, more) for _ in range(2))  # the state runs on between them
    if any(
        float((a - b).abs().max()) > _REPEATS * float(a.abs().max()) for a, b in zip(one, two, strict=True)
    ):
        raise ValueError(
            f"`loss` gives {float(one[0]):g}, then {float(two[0]):g} for the same batch, so it is random or "
            "remembers calls. Pass a module in eval mode, or the module itself: it is copied for each call."
        )
    return float(one[0]), one[1]


def _evaluate(loss: Any, point: Tensor, labels: Tensor, more: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return value () and gradient (B, C), detached, of a copy of `loss` on copies of what it is given."""
    try:
        value = _called(loss, point, labels, more, torch.float64)
    except RuntimeError:  # constants of float32 that no module holds as buffers
        value = _called(loss, point, labels, more, torch.float32)
    if not isinstance(value, Tensor) or value.ndim or value.is_complex() or not value.requires_grad:
        found = type(value).__name__
        if isinstance(value, Tensor):
            found = f"shape {tuple(value.shape)}" if value.ndim else "one without gradient"
            found = f"one of {value.dtype}" if value.is_complex() else found
        raise ValueError(
            f"`loss` must return a real scalar tensor that torch can differentiate in the logits; found "
            f"{found}. Return the mean over the batch, not detached."
        )
    if bool(value.isnan()):
        raise ValueError("`loss` is NaN on this batch, so nothing can be measured. Look for log(0) or 0 / 0.")
    (gradient,) = torch.autograd.grad(value, point, allow_unused=True)
    return value.detach(), torch.zeros_like(point) if gradient is None else gradient


def _called(loss: Any, point: Tensor, labels: Tensor, more: tuple[Tensor, ...], dtype: torch.dtype) -> Any:
    own = copy.deepcopy(loss).to(dtype) if isinstance(loss, nn.Module) else loss
    # clones: a loss may write into what it is given, and a leaf would refuse it
    return own(point.to(dtype).clone(), labels.clone(), *(rows.to(dtype, copy=True) for rows in more))


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
