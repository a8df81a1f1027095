"""A loss as a sum of per-sample terms over one normaliser, so that no split of the data changes it."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lt_lib._checks import check_choice, check_labels

Terms = Callable[[Tensor, Tensor], Tensor]  # outputs (B, ...), labels (B, ...) -> (B,)

REDUCTIONS = ("none", "mean", "sum", "batchmean")  # "none" is averaged over all its numbers


class Summed(NamedTuple):
    """Per-sample terms, and by what the loss that was given divides their sum over all data."""

    terms: Terms
    normaliser: Callable[[Tensor, Tensor], float]  # (all labels, per-sample terms of one sample) -> number


def summed(loss: Any) -> Summed:
    """Return `loss` as per-sample terms with the normaliser that it has by itself.

    Args:
        loss: None or "cross_entropy" (the mean over samples); a loss of `lt_lib.losses` (mean over samples of
            its `per_sample`); a loss module of PyTorch with a `reduction` (its own mean or sum over all data
            at once; for a class-weighted `CrossEntropyLoss` that mean divides by the sum of the weights); or
            a function (outputs, labels) -> (B,), averaged over samples.

    Raises:
        ValueError: none of these.
    """
    if loss is None or (isinstance(loss, str) and loss == "cross_entropy"):
        return Summed(_plain, _samples)
    if hasattr(loss, "per_sample"):
        return Summed(_PerSample(loss), _samples)
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        return _of_module(loss)
    if callable(loss):
        return Summed(loss, _samples)
    raise ValueError(
        f'`loss` must be None, "cross_entropy", a loss module or a function (outputs, labels) -> one term a '
        f"sample; found {loss!r}."
    )


def check_terms(terms: Tensor, samples: int) -> Tensor:
    """Return `terms` if it holds one number a sample.

    Raises:
        ValueError: another shape, as of a loss that is already averaged.
    """
    if terms.shape != (samples,):
        raise ValueError(
            f"`loss` must return one term a sample, shape ({samples},); found shape {tuple(terms.shape)}. "
            "Leave the reduction out: the sum is divided by one `normaliser`, so that batches add up."
        )
    return terms


class _PerSample:
    """Calls `per_sample` on a copy, so that losses with running state keep theirs."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return copy.deepcopy(self.loss).per_sample(outputs, labels)


def _of_module(loss: nn.Module) -> Summed:
    how, single = loss.reduction, copy.deepcopy(loss)
    single.__dict__["reduction"] = "none"  # a plain attribute of every loss module

    def terms(outputs: Tensor, labels: Tensor) -> Tensor:
        return single(outputs, labels).reshape(len(outputs), -1).sum(1)

    check_choice(how, REDUCTIONS, "reduction")
    if how == "sum":
        return Summed(terms, lambda labels, one: 1.0)
    if how == "batchmean":
        return Summed(terms, _samples)
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return Summed(terms, lambda labels, one: _weight_sum(loss, labels))

    def numbers(labels: Tensor, outputs: Tensor) -> float:
        return float(len(labels) * single(outputs, labels[:1]).numel())

    return Summed(terms, numbers)


def _weight_sum(loss: Any, labels: Tensor) -> float:
    if labels.is_floating_point():  # class probabilities: PyTorch divides by their number
        return float(len(labels))
    kept = labels[labels != loss.ignore_index]
    if loss.weight is None:
        return float(kept.numel())
    return float(loss.weight.double().to(labels.device)[kept].sum())


def class_labels(loss: Any, labels: Tensor, outputs: Tensor) -> Tensor:
    """Return labels as cross-entropy takes them: class numbers as int64, class probabilities as they are.

    Labels of other losses are returned untouched.

    Args:
        loss: as in `summed`.
        labels: all of them.
        outputs: (1, C) of one sample.

    Raises:
        ValueError: a class number outside 0..C-1 (`ignore_index` of a PyTorch loss apart), labels of another
            kind, or outputs that are no logits.
    """
    plain = loss is None or isinstance(loss, str)
    if not plain and not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return labels
    if plain and outputs.ndim != 2:
        raise ValueError(
            f"Cross-entropy needs logits (B, C); for one image the model gave shape {tuple(outputs.shape)}. "
            "Pass the `loss` of such outputs."
        )
    if outputs.ndim != 2 or (labels.is_floating_point() and labels.shape[1:] == outputs.shape[1:]):
        return labels
    kept = labels if plain else labels[labels != loss.ignore_index]
    check_labels(kept, outputs.shape[1])
    return labels.to(torch.int64)


def _plain(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")


def _samples(labels: Tensor, outputs: Tensor) -> float:
    return float(len(labels))


def loss_sum(terms: Terms, outputs: Tensor, labels: Tensor, normaliser: float) -> Tensor:
    """Return the sum of the terms over `normaliser`, a scalar."""
    return check_terms(terms(outputs, labels), len(outputs)).sum() / normaliser
