"""Balanced contrastive learning (BCL)."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lt_lib._checks import check_counts
from lt_lib.losses._base import ClassLoss, class_totals, gather_class
from lt_lib.losses.adjusted import LogitAdjustedCrossEntropy
from lt_lib.losses.views import ContrastiveViews, check_pair, check_rows, check_views
from lt_lib.reweighting import InverseReweighting
from lt_lib.reweighting._entry import check_number, widen


def balanced_contrastive(
    embeddings: Tensor, labels: Tensor, prototypes: Tensor, temperature: float, anchor_in_sum: bool = False
) -> Tensor:
    r"""Balanced contrastive loss of each anchor, (n,) (Zhu et al., CVPR 2022, arXiv 2207.09052).

    With unit vectors z, :math:`B_c` the anchors of class c and :math:`p_c` its prototype,

    .. math::

       L_i = -\frac1{|B_y|} \sum_{p \in (B_y \setminus i) \cup \{p_y\}}
             \log \frac{e^{z_i \cdot z_p / \tau}}
             {\sum_{c} \frac1{|B_c| + 1} \sum_{k \in B_c \cup \{p_c\}} e^{z_i \cdot z_k / \tau}}

    Class-averaging is the factor of the inner sum, class-complement the prototype in every class: each
    class is there in each batch, and an anchor that is alone in its class still has a positive. Read as it
    stands the inner sum of the anchor's own class holds the anchor itself, :math:`e^{1/\tau}`
    (`anchor_in_sum=True`). The released code leaves it out and divides by the number of the others,
    :math:`|B_y|`, as here by default.

    On a simplex ETF every term is the same, whatever the counts; their mean over anchors is stationary there
    only if the classes have equally many, the mean over classes always (both tested).

    Args:
        embeddings: z, (n, p), of any length; the views of a batch one after the other.
        labels: (n,) int64.
        prototypes: (C, p), of any length.
        temperature: tau.
        anchor_in_sum: see above.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        z, centres = (normalize(widen(rows)) for rows in (embeddings, prototypes))
        similar = z @ torch.cat((z, centres)).t() / temperature  # (n, n + C)
    anchors, classes = len(z), len(centres)
    numbers = class_totals(labels, classes, z.dtype) + 1  # with the prototype
    keys = torch.cat((labels, torch.arange(classes, device=labels.device)))
    same = labels.unsqueeze(1) == keys
    itself = torch.eye(anchors, len(keys), dtype=torch.bool, device=z.device)
    others = same & ~itself
    own = numbers.index_select(0, labels) - 1
    logs = numbers.log().index_select(0, keys)  # (n + C,)
    average = similar - logs
    if not anchor_in_sum:
        average = torch.where(same, similar - own.log().unsqueeze(1), average).masked_fill(itself, -math.inf)
    positive = (similar * others).sum(1) / own
    return average.logsumexp(1) - positive


class BCLLoss(ClassLoss):
    r"""Loss of BCL: logit compensation and balanced contrast (Zhu et al., CVPR 2022, arXiv 2207.09052).

    .. math:: L = \lambda\,\mathrm{CE}(z + \log\pi) + \mu\, L_\mathrm{BCL}

    The first term is `logit_adjustment` at tau = 1 on the classification view. The second is
    `balanced_contrastive` over two more views of each image, whose embeddings a small network makes of the
    features, and over class prototypes, which another makes of the classifier's weights.

    Defaults are those of the released code for ImageNet-LT (lambda 1, mu 0.35, tau 0.07), which holds no
    script for CIFAR.

    **With inverse reweighting** ("+Loss" of arXiv 2605.10047, whose appendix we have not seen: OA9) the
    inferred weights multiply the terms of the first part, and class losses are those of the compensated
    cross-entropy. The alternative, to weight the contrastive terms of an anchor's class too, would undo
    what class-averaging balances.

    Args:
        class_counts: training images of each class, (C,).
        temperature: tau.
        classification: lambda.
        contrast: mu.
        anchor_in_sum: see `balanced_contrastive`.
        dtype: of the compensation.

    Raises:
        ValueError: a class is empty, or a constant is out of range.
    """

    recipe, extras = "bcl", "bcl"

    def __init__(
        self,
        class_counts: Any,
        temperature: float = 0.07,
        classification: float = 1.0,
        contrast: float = 0.35,
        anchor_in_sum: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(len(check_counts(class_counts)))
        self.temperature = check_number(temperature, "temperature", low=0, open_low=True)
        self.classification = check_number(classification, "classification", low=0)
        self.contrast = check_number(contrast, "contrast", low=0)
        if not isinstance(anchor_in_sum, bool):
            raise ValueError(f"`anchor_in_sum` must be true or false; found {anchor_in_sum!r}.")
        self.anchor_in_sum = anchor_in_sum
        self.compensated = LogitAdjustedCrossEntropy(class_counts, 1.0, dtype)

    def weighted_forward(self, logits: Tensor, labels: Tensor, views: Any, class_weights: Tensor) -> Tensor:
        """Return the loss with `class_weights` (C,) on the classification term.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or the views are missing.
        """
        first = self.compensated.per_sample(logits, labels)
        return self._sum((first * gather_class(class_weights, labels, first)).mean(), labels, views)

    def reweighted_forward(
        self, logits: Tensor, labels: Tensor, views: Any, reweighting: InverseReweighting
    ) -> Tensor:
        """Return the loss with `reweighting` on the classification term.

        Raises:
            ValueError: a shape is wrong, a label is outside 0..C-1, or the views are missing.
        """
        first = self.compensated.per_sample(logits, labels)
        return self._sum(reweighting.apply_weights(first, labels), labels, views)

    def _sum(self, first: Tensor, labels: Tensor, views: Any) -> Tensor:
        labels = labels.to(torch.int64)
        return self.classification * first + self.contrast * self._contrast(labels, views).mean()

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        first = self.compensated.per_sample(logits, labels)
        return self.classification * first + self.contrast * self._contrast(labels, features)

    def _contrast(self, labels: Tensor, views: Any) -> Tensor:
        """Return the contrastive terms (B,), the mean over an image's two views."""
        views = check_views(views, ContrastiveViews, "bcl")
        width = check_pair(views.embeddings, len(labels), None, "embeddings")
        check_rows(views.prototypes, self.classes, width, "prototypes")
        terms = balanced_contrastive(
            torch.cat(views.embeddings),
            labels.repeat(2),
            views.prototypes,
            self.temperature,
            self.anchor_in_sum,
        )
        return terms.view(2, -1).mean(0)
