"""Losses in two stages (DRW): another loss, or other class weights, from an epoch on."""

from typing import Any

import torch
from torch import Tensor

from lt_lib.losses._base import ClassLoss, CrossEntropy, gather_class
from lt_lib.losses.weighted import check_weights
from lt_lib.reweighting._entry import check_epoch, check_start, first_epoch


class TwoStage(ClassLoss):
    """A loss whose second stage starts at `start`, an epoch or a share of the epochs in [0, 1).

    Before `set_epoch` is first called the first stage is in force, unless `start` is 0. `option` is the name
    of `start` in messages.
    """

    clock: Tensor  # (2,) the epoch that runs, and the first one of the second stage

    def __init__(self, loss: ClassLoss, start: int | float, option: str) -> None:
        super().__init__(loss.classes)
        self.loss, self.option = loss, option
        self.start = check_start(start, option)
        self._epoch, self._first = 0, 1 if self.start else 0
        self.register_buffer("clock", torch.tensor([self._epoch, self._first]))

    @property
    def active(self) -> bool:
        """Whether the second stage is in force."""
        return self._epoch >= self._first

    @property
    def recipe(self) -> str:
        """Recipe of the loss within."""
        return self.loss.recipe

    @property
    def extras(self) -> str | None:
        """Further heads of the loss within: the network has them from the start."""
        return self.loss.extras

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Start `epoch` of 0..epochs-1, for this loss and the one within.

        Raises:
            ValueError: `epoch` is outside, or the second stage would never start.
        """
        check_epoch(epoch, epochs)
        self._first = first_epoch(self.start, epochs, self.option)
        self._epoch = epoch
        self.clock.copy_(torch.tensor([self._epoch, self._first]))
        self.loss.set_epoch(epoch, epochs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._epoch, self._first = self.clock.tolist()


class Deferred(TwoStage):
    """Plain cross-entropy before `start`, the given loss from then on.

    Deferred re-weighting of Cao et al. 2019 (arXiv 1906.07413) with any loss as the second stage and
    cross-entropy as the first. `start` is an epoch, or a share of the epochs in [0, 1): 0.8 is epoch 160 of
    200. Before `set_epoch` is first called the loss is plain cross-entropy, unless `start` is 0.

    Raises:
        ValueError: `start` is neither, or an inverse reweighting within learns from the batches before it,
            which it would not see.
    """

    def __init__(self, loss: ClassLoss, start: int | float, option: str = "defer_epoch") -> None:
        super().__init__(loss, start, option)
        if self.start and any(getattr(module, "looks_ahead", False) for module in loss.modules()):
            raise ValueError(
                f"`{option}` hides the batches before epoch {start} from the inverse reweighting, whose "
                "`class_loss`, `mean` or `count_before_start` learns from them. Set `start_epoch` inside "
                "`inverse`, or of the loss `inverse`, in place of it."
            )
        self.plain = CrossEntropy(loss.classes)

    @property
    def recipe(self) -> str:
        """Recipe of the loss in force."""
        return self._current.recipe

    @property
    def _current(self) -> ClassLoss:
        return self.loss if self.active else self.plain

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the mean of the loss in force, a scalar.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or `features` are needed and not there.
        """
        return self._current(logits, labels, features)

    def per_sample(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the terms (B,) of the loss in force.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or `features` are needed and not there.
        """
        return self._current.per_sample(logits, labels, features)

    def plain_epochs(self, epochs: int) -> int:
        """Return the epochs before `start`: the deferred loss sees nothing of them.

        0 if the network has further heads for the deferred loss: it is then another network.

        Raises:
            ValueError: the deferred loss would never start.
        """
        first = first_epoch(self.start, epochs, self.option)
        return first if self.extras is None else 0


class DeferredReweighting(TwoStage):
    r"""The given loss throughout, its terms times class weights from epoch `start` on (DRW).

    Cao et al. 2019 (arXiv 1906.07413, Algorithm 1) for any loss: with LDAM it is the paper's LDAM-DRW. The
    paper's text takes weights :math:`\propto 1/n_c`; its published code takes class-balanced ones with beta
    0.9999 (`class_balanced_weights`), from epoch 160 of 200, and divides by the sum of the weights in the
    batch. Here the reduction is the mean of w_y l, and `make_loss` takes the code's weights. A loss of
    several views says itself which of its terms are weighted.

    Args:
        loss: in force from the first epoch.
        start: an epoch, or a share of the epochs in [0, 1).
        weights: (C,), at least 0.

    Raises:
        ValueError: `start` is neither, or `weights` are no C finite numbers of at least 0.
    """

    class_weights: Tensor  # (C,)

    def __init__(self, loss: ClassLoss, start: int | float, weights: Any) -> None:
        super().__init__(loss, start, "drw_epoch")
        vector = check_weights(weights, loss.classes)
        self.register_buffer("class_weights", vector.to(torch.get_default_dtype()))

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the mean loss, weighted once `start` is reached.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or `features` are needed and not there.
        """
        if not self.active:
            return self.loss(logits, labels, features)
        own: Any = getattr(self.loss, "weighted_forward", None)  # of a loss of several views
        if own is None:
            return self.per_sample(logits, labels, features).mean()
        value: Tensor = own(logits, labels, features, self.class_weights)
        return value

    def per_sample(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the terms (B,) whose mean is the loss.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, `features` are needed and not there, or
                the loss is of several views and weighted now: its terms are not one a sample then.
        """
        terms = self.loss.per_sample(logits, labels, features)
        if not self.active:
            return terms
        if hasattr(self.loss, "weighted_forward"):
            raise ValueError(
                "A loss of several views has weighted terms for two labels an image; found a call of "
                "`per_sample`. Call the loss itself."
            )
        return terms * gather_class(self.class_weights, labels.to(torch.int64), terms)

    def plain_epochs(self, epochs: int) -> int:
        """Return the epochs in which the loss within is plain cross-entropy and not weighted yet.

        Raises:
            ValueError: the weights would never come into force.
        """
        return min(first_epoch(self.start, epochs, self.option), self.loss.plain_epochs(epochs))
