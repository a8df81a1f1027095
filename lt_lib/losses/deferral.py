"""Deferred reweighting (DRW): plain cross-entropy first, another loss later."""

from typing import Any

import torch
from torch import Tensor

from lt_lib.losses._base import ClassLoss, CrossEntropy
from lt_lib.reweighting._entry import check_epoch, check_start, first_epoch


class Deferred(ClassLoss):
    """Plain cross-entropy before `start`, the given loss from then on (DRW).

    Deferred re-weighting of Cao et al. 2019 (arXiv 1906.07413) with any loss as the second stage.

    `start` is an epoch, or a share of the epochs in [0, 1): 0.8 is epoch 160 of 200. Before `set_epoch` is
    first called the loss is plain cross-entropy, unless `start` is 0.
    """

    clock: Tensor  # (2,) the epoch that runs, and the first one with the deferred loss

    def __init__(self, loss: ClassLoss, start: int | float) -> None:
        super().__init__(loss.classes)
        self.loss, self.plain = loss, CrossEntropy(loss.classes)
        self.start = check_start(start, "defer_epoch")
        self._epoch, self._first = 0, 1 if self.start else 0
        self.register_buffer("clock", torch.tensor([self._epoch, self._first]))

    @property
    def active(self) -> bool:
        """Whether the deferred loss is in force."""
        return self._epoch >= self._first

    @property
    def recipe(self) -> str:
        """Recipe of the loss in force."""
        return (self.loss if self.active else self.plain).recipe

    @property
    def extras(self) -> str | None:
        """Further heads of the deferred loss: the network has them from the start."""
        return self.loss.extras

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the mean of the loss in force, a scalar.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        return (self.loss if self.active else self.plain)(logits, labels, features)

    def per_sample(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the terms (B,) of the loss in force.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        return (self.loss if self.active else self.plain).per_sample(logits, labels, features)

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Start `epoch` of 0..epochs-1, for this loss and the deferred one.

        Raises:
            ValueError: `epoch` is outside, or the deferred loss would never start.
        """
        check_epoch(epoch, epochs)
        self._first = first_epoch(self.start, epochs, "defer_epoch")
        self._epoch = epoch
        self.clock.copy_(torch.tensor([self._epoch, self._first]))
        self.loss.set_epoch(epoch, epochs)

    def plain_epochs(self, epochs: int) -> int:
        """Return the epochs before `start`: the deferred loss sees nothing of them.

        0 if the network has further heads for the deferred loss: it is then another network.

        Raises:
            ValueError: the deferred loss would never start.
        """
        first = first_epoch(self.start, epochs, "defer_epoch")
        return first if self.extras is None else 0

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._epoch, self._first = self.clock.tolist()
