"""Inverse reweighting as one of the losses."""

from typing import Any

from torch import Tensor

from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting import InverseReweighting
from lt_lib.reweighting._entry import cross_entropy, first_epoch


class InverseLoss(ClassLoss):
    """Cross-entropy under `lt_lib.reweighting.InverseReweighting`, in the shape that all losses have.

    Read `.reweighting` for the options, the state and the diagnostics (`mean_weights`, `clamped_shares`,
    `fallbacks`).
    """

    def __init__(self, reweighting: InverseReweighting) -> None:
        super().__init__(reweighting.classes)
        self.reweighting = reweighting
        options = reweighting.options
        self._looks_ahead = (  # what it sees before its start has a part in what follows
            options.count_before_start
            or options.class_loss != "batch"
            or options.mean in ("running", "epoch")
        )

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the reweighted mean loss, a scalar.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        if self.reweighting.active or self._looks_ahead:
            return self.reweighting(logits, labels)
        # the fused mean of `CrossEntropy`: a mean of the terms differs from it in the last bit
        return cross_entropy(*self._enter(logits, labels), "mean")

    def per_sample(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
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

    def plain_epochs(self, epochs: int) -> int:
        """Return the epochs before `start_epoch`; 0 where batches or losses before it are remembered.

        Raises:
            ValueError: the reweighting would never start.
        """
        first = first_epoch(self.reweighting.options.start_epoch, epochs, "start_epoch")
        return 0 if self._looks_ahead else first
