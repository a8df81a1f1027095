"""Label-distribution-aware margins (LDAM)."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_counts
from lt_lib.losses._base import ClassLoss, gather_class
from lt_lib.reweighting._entry import check_number, cross_entropy
from lt_lib.reweighting.macro import relative_power


def ldam_margins(class_counts: Any, max_margin: float = 0.5) -> Tensor:  # (C,) float64
    r"""Margins :math:`\Delta_c \propto n_c^{-1/4}`, the largest being `max_margin` (Cao et al. 2019).

    They are in units of a cosine. The power 1/4 balances the margin-based bounds of two classes of the paper.

    Raises:
        ValueError: a class is empty, or `max_margin` is negative or not finite.
    """
    max_margin = check_number(max_margin, "max_margin", low=0)
    relative = relative_power(check_counts(class_counts).to(torch.float64), 0.25)
    return max_margin * relative / relative.max()


class LDAMLoss(ClassLoss):
    r"""Cross-entropy with a margin of the own class (Cao et al. 2019, arXiv 1906.07413, LDAM).

    .. math:: -\log\frac{e^{z_y - s\Delta_y}}{e^{z_y - s\Delta_y} + \sum_{k\ne y} e^{z_k}}

    for logits :math:`z = s\cos` of a cosine head, whose scale s must be `scale` here: the margin then is
    :math:`\Delta_y` in the cosine (see `ldam_margins`). `lt_lib.nets` builds it by ``head="cosine"``, with
    scale 30 by default as here. On another head the margin is s Delta in the logit, and long features
    outgrow it. The logits themselves are not changed at evaluation.

    The published code computes the same value (it takes the margin from the cosine and multiplies by 30
    afterwards), but with class weights it divides by the sum of the weights in the batch, and its deferred
    weights are class-balanced ones (beta 0.9999), where the paper's text says inverse frequency: here both
    come from the options `drw_epoch` and `drw_beta` of `make_loss`. Splitting a batch changes nothing.
    """

    margins: Tensor  # (C,) Delta, in units of a cosine

    def __init__(
        self,
        class_counts: Any,
        max_margin: float = 0.5,
        scale: float = 30.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        margins = ldam_margins(class_counts, max_margin)
        super().__init__(len(margins))
        self.scale = check_number(scale, "scale", low=0, open_low=True)
        self.register_buffer("margins", margins.to(dtype or torch.get_default_dtype()))

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        self._check_labels.every(labels, self.classes)  # they are an index before cross-entropy sees them
        # the margin goes in before the softmax: float32 rounds a small cross-entropy away that it would raise
        shift = -self.scale * gather_class(self.margins, labels, logits)
        return cross_entropy(logits.scatter_add(1, labels[:, None], shift[:, None]), labels)
