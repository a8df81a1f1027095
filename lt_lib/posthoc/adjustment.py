"""Logit adjustment after training: subtract the log prior from the logits."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, check_counts, check_finite
from lt_lib.reweighting._entry import check_number


def prior_shift(class_counts: Any, tau: float = 1.0) -> Tensor:
    r"""Return what logit adjustment adds to each logit, :math:`-\tau\log\pi_c`, (C,) float64, in nats.

    :math:`\pi_c = n_c/\sum_k n_k` is the share of class c among the training images.

    Raises:
        ValueError: a class has no images (its logarithm does not exist), or `tau` is not finite or so large
            that a shift overflows.
    """
    counts = check_counts(class_counts).to(torch.float64)
    shift = -check_number(tau, "tau") * (counts / counts.sum()).log()
    return check_overflow(shift, "the shift of the logits", tau)


def logit_adjustment(logits: Any, class_counts: Any, tau: float = 1.0) -> Tensor:
    r"""Return the adjusted logits :math:`z_k-\tau\log\pi_k` (Menon et al. 2021, arXiv 2007.07314).

    With tau = 1 and logits that are true log posteriors, the most likely class is that of balanced priors:
    the rule with the best balanced accuracy (Theorem T5). tau = 0 changes nothing.

    This is the *post-hoc* rule for a network that was trained without it. The loss `logit_adjustment` *adds*
    the same term while training, and its logits are used as they are: do one or the other. Where the logits
    can be any function of the input, both end at the same place: the loss at tau = 1 (balanced softmax) is
    least at :math:`z_k=\log\Pr(x\mid k)` up to a common constant, and so is :math:`z_k-\log\pi_k` of plain
    cross-entropy.

    Args:
        logits: (n, C), before any softmax.
        class_counts: training images of each class, (C,).
        tau: strength; 1 is the Bayes rule, other values are to be chosen on calibration data (`choose_tau`).

    Raises:
        ValueError: the shapes do not fit, a class has no images, the logits are not finite or are
            probabilities, or `tau` is not finite or so large that a logit overflows.
    """
    values = check_logits(logits)
    shift = prior_shift(class_counts, tau)
    if values.shape[1] != len(shift):
        raise ValueError(
            f"`logits` must have one column for each of the {len(shift)} classes of `class_counts`; found "
            f"{values.shape[1]}."
        )
    return check_overflow(values + shift.to(values), "the adjusted logits", tau)


def check_logits(logits: Any, name: str = "logits") -> Tensor:
    """Return `logits` (n, C) as a floating tensor.

    Raises:
        ValueError: the shape is wrong, a value is not finite, or each row is a probability vector: adding a
            shift to probabilities is another rule, which bounds what any shift can do.
    """
    values = as_floats(logits, name)
    if values.ndim != 2 or values.shape[1] < 2 or len(values) == 0:
        raise ValueError(
            f"`{name}` must be (n, C) with an image and two classes or more; found {tuple(values.shape)}."
        )
    check_finite(values, name)
    tolerance = 1e-4 if values.dtype in (torch.float32, torch.float64) else 1e-2
    if bool((values >= 0).all()) and bool(((values.sum(1) - 1).abs() < tolerance).all()):
        raise ValueError(
            f"`{name}` must be logits, but each row is a probability vector: not negative, sum 1. Pass what "
            "the network returns before the softmax, or `probabilities.log()`."
        )
    return values


def as_floats(value: Any, name: str) -> Tensor:
    """Return `value` as a floating tensor: whole numbers become float64, so that nothing is cut off.

    Raises:
        ValueError: `value` does not hold real numbers, or is ragged.
    """
    values = as_tensor(value, name)
    if values.is_complex():
        raise ValueError(f"`{name}` must hold real numbers; found {values.dtype}. Pass the real part.")
    return values if values.is_floating_point() else values.to(torch.float64)


def check_overflow(values: Tensor, what: str, tau: float) -> Tensor:
    """Return `values`, computed from finite numbers and `tau`.

    Raises:
        ValueError: one is not finite, since it leaves the range of its type.
    """
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"`tau` = {tau:g} is too large here: {what} overflows {values.dtype}. Pass a `tau` nearer to 0 "
            "(the usual ones lie in 0..2), or numbers in float64."
        )
    return values
