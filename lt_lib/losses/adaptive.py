"""Class weights that follow the class losses upwards: group DRO, and weights proportional to the loss."""

import math
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_counts
from lt_lib.losses._base import ClassLoss, class_totals
from lt_lib.reweighting._entry import check_number, cross_entropy

_STEEPEST = 1e3  # of `step`: from there on q is all on one class after a batch


def class_means(loss: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean loss of each class (C,), 0 for an absent one, and its samples (C,), without a loop."""
    counts = class_totals(labels, classes, loss.dtype)
    return loss.new_zeros(classes).index_add(0, labels, loss) / counts.clamp(min=1), counts


class GroupDRO(ClassLoss):
    r"""Group DRO with classes as groups (Sagawa et al. 2020, arXiv 1911.08731, Algorithm 1).

    .. math:: F = \sum_c q_c \ell_c,\qquad q_c \propto q_c\,e^{\eta (\ell_c + a / \sqrt{n_c})}

    It minimises the worst class's loss: q climbs by exponentiated gradient (`step` eta, 0.01 as in the paper)
    on :math:`\max_{q \in \Delta} \sum_c q_c \ell_c` while the network descends. ell_c is the class's mean
    cross-entropy in the batch, 0 for an absent class; `adjustment` is the paper's generalisation adjustment a
    with n_c the training images of the class. q is updated at each call in train mode, from the losses that
    it then weighs, and carries no gradient. `log_q` (C,) is kept, so that no class is lost to underflow.

    As in the published code all classes of a batch move q at once; the paper's algorithm draws one group a
    step, uniformly. Under instance-wise sampling a rare class is seldom there to raise its q: to follow the
    paper, train with class-balanced sampling. A batch with a NaN or infinite loss makes q NaN for good, as it
    makes the network; `lt_lib.training.train` stops then. The batch decides the terms, so splitting one
    changes the loss.
    """

    log_q: Tensor  # (C,)
    bonus: Tensor  # (C,) a / sqrt(n_c)

    def __init__(
        self,
        class_counts: Any,
        step: float = 0.01,
        adjustment: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        counts = check_counts(class_counts).to(torch.float64)
        super().__init__(len(counts))
        dtype = dtype or torch.get_default_dtype()
        self.step = check_number(step, "step", low=0, high=_STEEPEST)
        bonus = check_number(adjustment, "adjustment", low=0) * counts.rsqrt()
        self.register_buffer("bonus", bonus.to(dtype))
        self.register_buffer("log_q", torch.full_like(bonus, -math.log(len(counts)), dtype=dtype))

    @property
    def q(self) -> Tensor:
        """Weights of the classes (C,), sum one."""
        return self.log_q.exp()

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        loss = cross_entropy(logits, labels)
        means, counts = class_means(loss, labels, self.classes)
        if self.training:
            climbed = self.log_q + self.step * (means.detach().to(self.log_q.dtype) + self.bonus)
            self.log_q.copy_(climbed - climbed.logsumexp(0))
        weights = self.log_q.exp().to(loss.dtype) * len(labels) / counts.clamp(min=1)
        return loss * weights.index_select(0, labels)


class LossProportional(ClassLoss):
    r"""Cross-entropy with class weights proportional to the class loss, without gradient.

    .. math:: \frac1B \sum_i w_{y_i} \mathrm{CE}_i,\qquad w_c = \min(\ell_c / \bar\ell,\ \text{clamp})

    with the batch's class means ell_c and their mean over the classes present. It is the opposite of inverse
    reweighting under stop-gradient, whose weights are the reciprocals: an arm to compare with, from no paper.
    The gradient is that of :math:`\sum_c n_c \ell_c^2 / (2 B \bar\ell)` at frozen mean. Without `clamp` a
    weight can reach the number of classes present. Splitting a batch changes the loss.
    """

    def __init__(self, classes: int, clamp: float | None = None) -> None:
        super().__init__(classes)
        self.clamp = None if clamp is None else check_number(clamp, "clamp", low=0, open_low=True)

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        loss = cross_entropy(logits, labels)
        means, counts = class_means(loss.detach(), labels, self.classes)
        mean = means.sum() / (counts > 0).sum()
        weights = torch.where(mean > 0, means / mean, torch.ones_like(means))
        if self.clamp is not None:
            weights = weights.clamp(max=self.clamp)
        return loss * weights.index_select(0, labels)
