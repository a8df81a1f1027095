"""Checks at the door of every loss: shapes, labels, numbers and the epoch at which a loss starts."""

import math
from numbers import Integral, Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lt_lib._checks import check_labels

_NO_LABEL = -(2**31)  # torch would pass over the label -100 in silence

_ROUNDING = 1e-6  # how far below 0 a sample loss may lie


def check_number(
    value: Any, name: str, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float:
    """Return `value` as a finite float in `low`..`high` (without `low` itself if `open_low`).

    Raises:
        ValueError: `value` is no finite number or lies outside.
    """
    number = _is(value, Real) and abs(value) < math.inf
    if not number or value < low or value > high or (open_low and value == low):
        bounds = [f"{'above' if open_low else 'at least'} {low:g}"] if low > -math.inf else []
        bounds += [f"at most {high:g}"] if high < math.inf else []
        allowed = " and ".join(bounds) or "finite"
        raise ValueError(f"`{name}` must be a number, {allowed}; found {value!r}. Choose another value.")
    return float(value)


def check_flag(value: Any, name: str) -> bool:
    """Return a switch; refuse anything but True and False.

    Raises:
        ValueError: `value` is neither.
    """
    if isinstance(value, bool):
        return value
    raise ValueError(f"`{name}` must be true or false; found {value!r}.")


def _is(value: Any, kind: type) -> bool:  # NumPy's numbers too, but no booleans
    return isinstance(value, kind) and not isinstance(value, bool)


def check_start(value: Any, name: str) -> int | float:
    """Return a starting epoch: a whole epoch from 0, or a float in [0, 1) that is a share of the epochs.

    Raises:
        ValueError: `value` is neither.
    """
    if _is(value, Integral) and value >= 0:
        return int(value)
    if _is(value, Real) and not isinstance(value, Integral) and 0 <= value < 1:
        return float(value)
    raise ValueError(
        f"`{name}` must be a whole epoch from 0, or a share of the epochs in [0, 1); found {value!r}. "
        "Write 160 for epoch 160, or 0.8 for the last fifth of training."
    )


def first_epoch(start: int | float, epochs: int, name: str) -> int:
    """Return the epoch, counted from 0, at which something that starts at `start` begins.

    A share is rounded to the nearest epoch, and to the last one at the latest: 0.8 is epoch 160 of 200 and
    19 of 24, and 0.9 is epoch 3 of 0..3.

    Raises:
        ValueError: training of `epochs` epochs ends before a whole epoch `start`.
    """
    first = min(round(start * epochs), epochs - 1) if isinstance(start, float) else start
    if first >= epochs:
        raise ValueError(
            f"`{name}` is {start}, but training has {epochs} epochs (0..{epochs - 1}), so the loss would "
            "never start. Lower it, train longer, or use the loss `ce`."
        )
    return first


def check_epoch(epoch: int, epochs: int) -> None:
    """Refuse an epoch that is no whole number in 0..epochs-1.

    Raises:
        ValueError: it is none or lies outside, or `epochs` is no whole number from 1.
    """
    for name, value in (("epoch", epoch), ("epochs", epochs)):
        if not _is(value, Integral):
            raise ValueError(f"`{name}` must be a whole number; found {value!r}. Count whole epochs from 0.")
    if epochs < 1:
        raise ValueError(f"`epochs` must be at least 1; found {epochs}. Pass the epochs of the training.")
    if not 0 <= epoch < epochs:
        raise ValueError(
            f"`epoch` must be 0..{epochs - 1}, since training has {epochs} epochs; found {epoch}. "
            "Count from 0."
        )


class LabelCheck:
    """Checks label values on entry, only of the first batch on an accelerator.

    Reading a value there makes the host wait for the device, so it is done once. On a CPU every batch is
    checked, by `cross_entropy` where that is called anyway.
    """

    def __init__(self) -> None:
        self.passed = False

    def first(self, labels: Tensor, classes: int) -> None:
        """Refuse labels outside 0..classes-1 in the first batch.

        Raises:
            ValueError: a label lies outside, or `labels` is not one-dimensional and integer.
        """
        if not self.passed:
            check_labels(labels, classes)
            self.passed = True

    def every(self, labels: Tensor, classes: int) -> None:
        """Refuse labels outside 0..classes-1 in each batch on a CPU, in the first elsewhere.

        Raises:
            ValueError: a label lies outside, or `labels` is not one-dimensional and integer.
        """
        if not self.passed:
            self.first(labels, classes)
        elif labels.device.type == "cpu":
            low, high = labels.aminmax()
            if int(low) < 0 or int(high) >= classes:
                check_labels(labels, classes)


def check_batch(scores: Tensor, labels: Tensor, classes: int, samples: bool = False) -> Tensor:
    """Return labels as int64; refuse logits (B, C), or sample losses (B,), that do not fit; reads no value.

    Raises:
        ValueError: no tensor, a wrong shape, an empty batch, or scores that are not floating-point.
    """
    if not isinstance(scores, Tensor) or not isinstance(labels, Tensor):
        raise ValueError(
            f"A loss takes tensors, which carry the gradient; found {type(scores).__name__} and "
            f"{type(labels).__name__}. Convert them with `torch.as_tensor`."
        )
    expected = labels.shape if samples else (*labels.shape, classes)
    if labels.ndim != 1 or scores.shape != expected or not scores.is_floating_point():
        kind = "sample losses (B,)" if samples else f"logits (B, {classes})"
        hint = "one loss a label; logits go to `forward`" if samples else "one row a label"
        raise ValueError(
            f"For labels of shape {tuple(labels.shape)} and {classes} classes the scores must be "
            f"floating-point {kind}; found shape {tuple(scores.shape)} of {scores.dtype}. Pass {hint}."
        )
    if len(labels) == 0:
        raise ValueError("`labels` is empty, so its mean loss is undefined. Pass at least one sample.")
    if labels.dtype == torch.int64:
        return labels
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"`labels` must be whole numbers; found {labels.dtype}. Pass class numbers.")
    return labels.to(torch.int64)


def check_signs(losses: Tensor) -> None:
    """Refuse negative sample losses (B,) on a CPU; elsewhere reading them would make the host wait.

    Raises:
        ValueError: a loss is negative by more than rounding.
    """
    if losses.device.type == "cpu" and (low := float(losses.detach().amin())) < -_ROUNDING:
        raise ValueError(
            f"Sample losses must be at least 0; found {low:g}. Add a constant, or choose another loss."
        )


def widen(scores: Tensor) -> Tensor:
    """Return half-precision scores as float32, others unchanged: losses are computed in float32 at least."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
    """Cross-entropy of each sample (B,), or their mean, in float32 at least.

    Raises:
        ValueError: a label is outside 0..C-1 (on a CPU).
    """
    try:
        return F.cross_entropy(widen(logits), labels, reduction=reduction, ignore_index=_NO_LABEL)
    except IndexError:
        check_labels(labels, logits.shape[1])
        raise
