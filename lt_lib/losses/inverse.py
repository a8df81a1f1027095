"""Inverse reweighting as one of the losses."""

from typing import Any

from torch import Tensor

from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting import InverseReweighting
from lt_lib.reweighting._entry import cross_entropy, first_epoch
from lt_lib.reweighting.options import Options


def _looks_ahead(options: Options) -> bool:
    """Say whether what is seen before the start has a part in what follows."""
    remembers = options.class_loss != "batch" or options.mean in ("running", "epoch")
    return options.count_before_start or remembers


class InverseLoss(ClassLoss):
    """Cross-entropy under `lt_lib.reweighting.InverseReweighting`, in the shape that all losses have.

    Read `.reweighting` for the options, the state and the diagnostics (`mean_weights`, `clamped_shares`,
    `fallbacks`).
    """

    def __init__(self, reweighting: InverseReweighting) -> None:
        super().__init__(reweighting.classes)
        self.reweighting = reweighting
        self.looks_ahead = _looks_ahead(reweighting.options)

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the reweighted mean loss, a scalar.

        Raises:
            ValueError: a shape is wrong or a label is outside 0..C-1.
        """
        if self.reweighting.active or self.looks_ahead:
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
        return 0 if self.looks_ahead else first


class Reweighted(ClassLoss):
    """Inverse reweighting on top of any loss ("+Loss" of arXiv 2605.10047): sample losses in, weights out.

    The terms of the loss within, which must be at least 0, take the place of cross-entropy in
    `InverseReweighting`: class losses and weights are theirs. Before its `start_epoch` the loss within is in
    force alone. On top of cross-entropy it is `InverseLoss`. A loss of several views says itself which of its
    terms are reweighted. At alpha = 0, with the gradient through the weights and the class mean, it trains,
    up to the step size, the mean over the classes present of their mean terms (Theorem T2).

    Args:
        loss: any loss on logits.
        reweighting: for the same classes.

    Raises:
        ValueError: the two are for different numbers of classes, or the loss is of several views and wrapped,
            so that it cannot say which of its terms are reweighted.
    """

    def __init__(self, loss: ClassLoss, reweighting: InverseReweighting) -> None:
        super().__init__(loss.classes)
        if loss.extras is not None and not hasattr(loss, "reweighted_forward"):
            raise ValueError(
                f"A {type(loss).__name__} around a loss of several views cannot be reweighted as well, since "
                "class weights replace each other there. Reweight the loss itself, and defer the result."
            )
        if reweighting.classes != loss.classes:
            raise ValueError(
                f"`reweighting` must be for the {loss.classes} classes of `loss`; found "
                f"{reweighting.classes}. Build both from the same counts."
            )
        self.loss, self.reweighting = loss, reweighting
        self.looks_ahead = _looks_ahead(reweighting.options)

    @property
    def recipe(self) -> str:
        """Recipe of the loss within."""
        return self.loss.recipe

    @property
    def extras(self) -> str | None:
        """Further heads of the loss within."""
        return self.loss.extras

    def forward(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the reweighted mean loss, a scalar.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, `features` are needed and not there, or a
                term is negative (looked for on a CPU only).
        """
        if not (self.reweighting.active or self.looks_ahead):
            return self.loss(logits, labels, features)
        own: Any = getattr(self.loss, "reweighted_forward", None)  # of a loss of several views
        if own is not None:
            value: Tensor = own(logits, labels, features, self.reweighting)
            return value
        return self.reweighting.apply_weights(self.loss.per_sample(logits, labels, features), labels)

    def per_sample(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        """Return the terms (B,) whose mean is the loss; in train mode this, too, counts as a batch.

        Raises:
            ValueError: as `forward`.
        """
        terms = self.loss.per_sample(logits, labels, features)
        return self.reweighting.apply_weights(terms, labels, reduction="none")

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Start an epoch, for the reweighting and the loss within.

        Raises:
            ValueError: `epoch` is outside 0..epochs-1, or one of the two would never start.
        """
        self.reweighting.set_epoch(epoch, epochs)
        self.loss.set_epoch(epoch, epochs)

    def plain_epochs(self, epochs: int) -> int:
        """Return the epochs in which the loss within is plain cross-entropy and not reweighted yet.

        0 where the reweighting remembers batches or losses from before its start.

        Raises:
            ValueError: one of the two would never start.
        """
        first = first_epoch(self.reweighting.options.start_epoch, epochs, "start_epoch")
        return min(0 if self.looks_ahead else first, self.loss.plain_epochs(epochs))
