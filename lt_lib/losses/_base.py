"""What every loss shares: checks on entry, the reduction, and the epoch."""

from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.reweighting._entry import LabelCheck, check_batch, check_epoch, cross_entropy, widen


class ClassLoss(nn.Module):
    r"""A loss of logits (B, C) and labels (B,); as it stands, plain cross-entropy.

    The reduction is always :math:`\frac1B\sum_i` of the terms of `per_sample`, whatever weights they hold. It
    differs from `torch.nn.CrossEntropyLoss(weight)`, which divides by the sum of the weights in the batch:
    there the weight has no effect at batch size 1, and splitting a batch changes the gradient.

    Losses are computed in float32 at least, on the device of the logits. Labels are checked at each batch on
    a CPU and at the first batch elsewhere.

    What a loss needs beside logits and labels comes as `features`, and `recipe` says what that is: nothing
    ("plain"), the vectors (B, d) that the classifier acts on ("features"), or another recipe's views of the
    batch. `extras` names further heads that the network must have.

    `class_counts` are the training images of each class, (C,) int64 on the CPU, that `make_loss` was given:
    no state, but `lt_lib.training.train` compares them with the labels. None, the default, is compared with
    nothing: set it where labels and counts are meant to differ.
    """

    class_counts: Tensor | None = None

    @property
    def recipe(self) -> str:
        """Name of the training recipe that feeds this loss; asked for anew when an epoch starts."""
        return "plain"

    @property
    def extras(self) -> str | None:
        """Name of the further heads that the network must have, or None."""
        return None

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self._check_labels = LabelCheck()

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the mean loss, a scalar; `features` serves losses that need more than logits.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or `features` are needed and not there.
        """
        return self.per_sample(logits, labels, features).mean()

    def per_sample(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the terms (B,) whose mean is the loss.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or `features` are needed and not there.
        """
        return self._terms(*self._enter(logits, labels), features)

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Tell the loss that `epoch` of 0..epochs-1 starts; most losses only check it.

        Raises:
            ValueError: `epoch` is outside 0..epochs-1.
        """
        check_epoch(epoch, epochs)

    def plain_epochs(self, epochs: int) -> int:
        """Return how many first epochs of `epochs` are plain cross-entropy and leave no trace in this loss.

        Trainings that differ in their loss alone are one and the same, bit for bit, up to the smallest of
        these numbers: such epochs have the value and the gradient of `CrossEntropy`, and what follows does
        not depend on what this loss saw in them.

        Raises:
            ValueError: the loss would never start within `epochs`.
        """
        return 0

    def _enter(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels = check_batch(logits, labels, self.classes)
        self._check_labels.first(labels, self.classes)
        return widen(logits), labels

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        return cross_entropy(logits, labels)


def gather_class(per_class: Tensor, labels: Tensor, like: Tensor) -> Tensor:
    """Look up per-class numbers (C,) for each label, in the dtype of `like`."""
    return per_class.index_select(0, labels).to(like.dtype)


class CrossEntropy(ClassLoss):
    """Plain cross-entropy, the mean over samples."""

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the mean loss in one fused call.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        return cross_entropy(*self._enter(logits, labels), "mean")

    def plain_epochs(self, epochs: int) -> int:
        """Return `epochs`: all of them."""
        return epochs


def class_totals(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Count the labels of a batch, (C,) in `dtype`, without waiting for a device (`bincount` would)."""
    ones = torch.ones(len(labels), dtype=dtype, device=labels.device)
    return torch.zeros(classes, dtype=dtype, device=labels.device).index_add(0, labels, ones)


def check_features(features: Any, labels: Tensor, loss: str) -> Tensor:
    """Return the vectors (B, d) that the classifier acts on, in float32 at least; refuse anything else.

    Raises:
        ValueError: `features` are missing, or are not one floating-point row a label.
    """
    if isinstance(features, Tensor):
        if features.ndim == 2 and len(features) == len(labels) and features.is_floating_point():
            return widen(features)
        found = f"shape {tuple(features.shape)} of {features.dtype}"
    else:
        found = "none" if features is None else type(features).__name__
    raise ValueError(
        f"The loss `{loss}` needs `features`, the floating-point vectors ({len(labels)}, d) that the "
        f"classifier acts on; found {found}. The recipe `features` of `lt_lib.training` passes them; "
        "by hand call `loss(logits, labels, features)`."
    )
