"""Losses by name."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from lt_lib._checks import check_choice, check_counts
from lt_lib.losses._base import ClassLoss, CrossEntropy
from lt_lib.losses.adjusted import BalancedSoftmax, LogitAdjustedCrossEntropy
from lt_lib.losses.deferral import Deferred
from lt_lib.losses.focal import FocalLoss
from lt_lib.losses.inverse import InverseLoss
from lt_lib.losses.weighted import (
    ClassMeanCrossEntropy,
    WeightedCrossEntropy,
    class_balanced_weights,
    inverse_frequency_weights,
)
from lt_lib.reweighting import InverseReweighting

PRESETS = ("as_written", "as_released")


def _ce(counts: Tensor) -> ClassLoss:
    return CrossEntropy(len(counts))


def _class_mean(counts: Tensor) -> ClassLoss:
    return ClassMeanCrossEntropy(len(counts))


def _inverse_frequency(counts: Tensor, power: float = 1.0) -> ClassLoss:
    return WeightedCrossEntropy(inverse_frequency_weights(counts, power))


def _class_balanced(counts: Tensor, beta: float = 0.9999) -> ClassLoss:
    return WeightedCrossEntropy(class_balanced_weights(counts, beta))


def _focal(counts: Tensor, gamma: float = 2.0, weights: Any = None) -> ClassLoss:
    return FocalLoss(len(counts), gamma, weights)


def _logit_adjustment(counts: Tensor, tau: float = 1.0) -> ClassLoss:
    return LogitAdjustedCrossEntropy(counts, tau)


def _balanced_softmax(counts: Tensor) -> ClassLoss:
    return BalancedSoftmax(counts)


def _inverse(counts: Tensor, preset: str | None = None, **options: Any) -> ClassLoss:
    if preset is None:
        return InverseLoss(InverseReweighting(counts, **options))
    check_choice(preset, PRESETS, "preset")
    return InverseLoss(getattr(InverseReweighting, preset)(counts, **options))


_BUILDERS: dict[str, Callable[..., ClassLoss]] = {
    "ce": _ce,
    "class_mean": _class_mean,
    "inverse_frequency": _inverse_frequency,
    "class_balanced": _class_balanced,
    "focal": _focal,
    "balanced_softmax": _balanced_softmax,
    "logit_adjustment": _logit_adjustment,
    "inverse": _inverse,
}
LOSS_NAMES: tuple[str, ...] = tuple(_BUILDERS)


def loss_options(name: str) -> tuple[str, ...]:
    """List the hyper-parameters that `make_loss` takes for a loss.

    Raises:
        ValueError: the loss is unknown.
    """
    check_choice(name, LOSS_NAMES, "name")
    own = [p for p in inspect.signature(_BUILDERS[name]).parameters if p not in ("counts", "options")]
    if name == "inverse":
        own += [p for p in inspect.signature(InverseReweighting).parameters if p != "class_counts"]
    return ("defer_epoch", *own)


def make_loss(name: str, class_counts: Any, **hyper: Any) -> ClassLoss:
    r"""Build a loss by name.

    It has `forward(logits, labels, features=None)`, a scalar, `per_sample(logits, labels)`, (B,), and
    `set_epoch(epoch, epochs)`.

    The loss is the mean over the B samples of these terms, with n the training images of the class and z the
    logits:

    - ``ce``: -log p_y.
    - ``class_mean``: the class means of the batch, averaged over the classes present.
    - ``inverse_frequency``: w_y (-log p_y), w ~ n^-power with mean 1 over classes; `power` 1.
    - ``class_balanced``: w_y (-log p_y), w ~ (1 - beta) / (1 - beta^n) with sum C; `beta` 0.9999.
    - ``focal``: w_y (1 - p_y)^gamma (-log p_y); `gamma` 2, `weights` none.
    - ``balanced_softmax``: -log softmax(z + log n)_y.
    - ``logit_adjustment``: -log softmax(z + tau log pi)_y, pi = n / sum n; `tau` 1.
    - ``inverse``: inverse reweighting; `preset` ("as_written" or "as_released") and the options of
      `InverseReweighting`.

    Every loss takes `defer_epoch`: plain cross-entropy before that epoch (an epoch, or a share of the epochs
    in [0, 1)). For `inverse` it is `start_epoch`. Every rule refuses a class without images, also those that
    use no counts: drop the class, or merge it with another.

    Args:
        name: one of `LOSS_NAMES`.
        class_counts: training images of each class, (C,), at least 1.
        **hyper: see the table; plain numbers, names and lists, so that a configuration can be stored as JSON.

    Raises:
        ValueError: the name or a hyper-parameter is unknown, a value is not allowed, or a class is empty.
    """
    known = loss_options(name)
    for option in hyper:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"The loss `{name}` has no option `{option}`; known: {', '.join(known)}.{hint}")
    counts = check_counts(class_counts)
    defer = hyper.pop("defer_epoch", None)
    if name == "inverse" and defer is not None:
        if "start_epoch" in hyper:
            raise ValueError(
                "The loss `inverse` was given both `defer_epoch` and `start_epoch`. Pass one of them."
            )
        return _inverse(counts, **{**hyper, "start_epoch": defer})
    loss = _BUILDERS[name](counts, **hyper)
    return loss if defer is None else Deferred(loss, defer)
