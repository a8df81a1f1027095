"""Inverse reweighting as one of the losses."""

from typing import Any

from torch import Tensor

from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting import InverseReweighting


class InverseLoss(ClassLoss):
    """Cross-entropy under `lt_lib.reweighting.InverseReweighting`, in the shape that all losses have.

    Read `.reweighting` for the options, the state and the diagnostics (`mean_weights`, `clamped_shares`,
    `fallbacks`).
    """

    def __init__(self, reweighting: InverseReweighting) -> None:
        super().__init__(reweighting.classes)
        self.reweighting = reweighting

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the reweighted mean loss, a scalar.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        return self.reweighting(logits, labels)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the terms (B,) whose mean is the loss; in train mode this, too, counts as a batch.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        return self.reweighting(logits, labels, reduction="none")

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Start an epoch: see `InverseReweighting.set_epoch`.

        Raises:
            ValueError: `epoch` is outside 0..epochs-1, or the reweighting would never start.
        """
        self.reweighting.set_epoch(epoch, epochs)
