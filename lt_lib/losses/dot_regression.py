"""Dot regression (DR) on a fixed simplex ETF."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_choice
from lt_lib.losses._base import ClassLoss, check_features, class_totals
from lt_lib.reweighting._entry import check_flag, check_number

LENGTHS = ("unit", "batch")
_SHORTEST = 1e-8  # of the published code: no division by a length of 0


class DotRegressionLoss(ClassLoss):
    r"""Dot regression (Yang et al. 2022, arXiv 2203.09081), for a fixed ETF head.

    .. math:: \frac{(h^\top m_y - \lVert m_y\rVert\,\lVert h\rVert)^2}{2\,\lVert h\rVert}

    h is the vector that the head acts on and m_c the head's rows: unit ones (`lengths` "unit"), or of the
    lengths :math:`\sqrt{(B/|P|)/n_c}` in a batch with n_c samples of class c and |P| classes ("batch").
    For unit vectors it is :math:`(\cos - 1)^2/2`: it pulls h to its own row and pushes from no other, so that
    only the own logit gets a gradient. `h m_y` is read from that logit, over the head's `scale`.

    "batch" multiplies each sample's term by the square of its length, so that the loss becomes the mean over
    the classes present of their means: what `class_mean` is to `ce`. It then depends on the whole batch;
    with "unit" splitting a batch changes nothing.

    The published code takes the length of h as a constant (`detach`, its reading here by default; on the unit
    sphere it makes no difference), normalises features by a BatchNorm and to the unit sphere before the head
    (``head="etf", unit=True, batch_norm=True`` here), and adds mixup in its configurations. It divides by
    the length of h alone also under "batch", as here. The head must be of ``head="etf"``: a trained head can
    shrink or turn at will.
    """

    recipe = "features"

    def __init__(self, classes: int, scale: float = 1.0, lengths: str = "unit", detach: bool = True) -> None:
        super().__init__(classes)
        self.scale = check_number(scale, "scale", low=0, open_low=True)
        check_choice(lengths, LENGTHS, "lengths")
        self.lengths, self.detach = lengths, check_flag(detach, "detach")

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        self._check_labels.every(labels, self.classes)  # an index, and no cross-entropy that would check it
        vectors = check_features(features, labels, "dr")
        size = torch.linalg.vector_norm(vectors, dim=1).clamp(min=_SHORTEST).to(logits.dtype)
        if self.detach:
            size = size.detach()
        dot = logits.gather(1, labels[:, None])[:, 0] / self.scale
        terms = (dot - size).square() / (2 * size)
        if self.lengths == "unit":
            return terms
        counts = class_totals(labels, self.classes, terms.dtype)
        return terms * (len(labels) / (counts > 0).sum()) / counts.index_select(0, labels)
