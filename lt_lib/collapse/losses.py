"""Mean loss of each class, and how unequal the classes are."""

import math
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, as_vector, check_labels
from lt_lib.collapse.metrics import as_double


def class_losses(per_sample_loss: Any, labels: Any, classes: int) -> Tensor:
    """Return the mean loss of each class, `L_c`, over the samples given.

    Args:
        per_sample_loss: (n,), in nats for cross-entropy, a tensor (gradients pass through), array or list.
        labels: (n,) whole numbers in 0..classes-1.
        classes: C.

    Returns:
        Tensor (C,) float64; nan for a class without samples.

    Raises:
        ValueError: labels outside 0..classes-1, or of another length than the losses.
    """
    per_sample_loss, labels = as_tensor(per_sample_loss, "per_sample_loss"), as_tensor(labels, "labels")
    labels = check_labels(labels, classes)
    if per_sample_loss.shape != labels.shape:
        raise ValueError(
            f"`per_sample_loss` must hold one loss for each of the {len(labels)} labels; found shape "
            f'{tuple(per_sample_loss.shape)}. Compute it with `reduction="none"`.'
        )
    loss = as_double(per_sample_loss)
    labels = labels.to(loss.device)
    total = loss.new_zeros(classes).index_add(0, labels, loss)
    return total / torch.bincount(labels, minlength=classes)


def loss_imbalance(class_loss: Any) -> float:
    """Return `rho`: the population standard deviation of the class losses over their mean, in 0..sqrt(C-1).

    Classes whose loss is nan (no samples) are left out. The paper (arXiv 2605.10047) prints no formula; this
    is the coefficient of variation. At a mean loss of exactly 0 it is 0/0 and nan is returned.

    Raises:
        ValueError: a loss is negative or infinite, or no class has one.
    """
    loss = _present(class_loss)
    mean = float(loss.mean())
    return float(loss.std(correction=0)) / mean if mean > 0 else math.nan


def loss_ratio(class_loss: Any) -> float:
    """Return the largest class loss over the smallest, at least 1; infinite when the smallest alone is 0.

    Classes whose loss is nan (no samples) are left out; nan when all losses are 0.

    Raises:
        ValueError: a loss is negative or infinite, or no class has one.
    """
    loss = _present(class_loss)
    low, high = float(loss.min()), float(loss.max())
    if low > 0:
        return high / low
    return math.inf if high > 0 else math.nan


def _present(class_loss: Any) -> Tensor:
    loss = as_vector(class_loss, "class_loss").detach()
    kept = loss[~loss.isnan()]
    if len(kept) == 0:
        raise ValueError("`class_loss` must hold a number for at least one class; all are nan.")
    bad = ((loss < 0) | loss.isinf()).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"`class_loss` must be finite and not negative; found {float(loss[bad[0]]):g} for class {bad[0]}."
        )
    return kept
