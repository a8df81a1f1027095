"""Influence-balanced loss (IB)."""

from typing import Any

import torch
from torch import Tensor

from lt_lib.losses._base import ClassLoss, check_features, gather_class
from lt_lib.losses.weighted import inverse_frequency_weights
from lt_lib.reweighting._entry import check_flag, check_number, cross_entropy

_EPSILON = 1e-3  # of the published code


class InfluenceBalancedLoss(ClassLoss):
    r"""Cross-entropy over each sample's influence on the classifier (Park et al. 2021, arXiv 2110.02444).

    .. math:: \frac{\alpha\,w_y}{\lVert p - e_y\rVert_1\,\lVert h\rVert_1 + 10^{-3}}\,(-\log p_y),\qquad
        w_c \propto 1/n_c \text{ with mean one}

    for softmax probabilities p and the vector h that the classifier acts on. The product of norms is the
    L1 norm of the sample's gradient in the classifier's matrix, since that gradient is
    :math:`(p - e_y) h^\top`; and :math:`\lVert p - e_y\rVert_1 = 2(1 - p_y)`.

    `detach` says whether the factor carries a gradient. False, the default, is the published code and the
    plain derivative of the formula. True treats it as a weight, as the derivation by influence suggests: the
    sample's gradient in the classifier then has the L1 norm alpha w_y whatever the sample (but for the 1e-3).

    The paper trains with plain cross-entropy first: the option `start_epoch` of the loss `ib` (0.5, the
    published code's epoch 100 of 200). That code also multiplies the learning rate by 0.01 at that epoch,
    which no loss can do: set it in the schedule, or pass `alpha` 10, which makes the same step at an
    undropped rate. `alpha` is 1000 as its training script passes; its class has 10000 as default. Splitting a
    batch changes nothing.
    """

    recipe = "features"

    class_weights: Tensor

    def __init__(
        self,
        class_counts: Any,
        alpha: float = 1000.0,
        detach: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        weights = inverse_frequency_weights(class_counts)
        super().__init__(len(weights))
        self.alpha = check_number(alpha, "alpha", low=0, open_low=True)
        self.detach = check_flag(detach, "detach")
        self.register_buffer("class_weights", weights.to(dtype or torch.get_default_dtype()))

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        lengths = check_features(features, labels, "ib").abs().sum(1).to(logits.dtype)
        loss = cross_entropy(logits, labels)
        influence = -2 * torch.expm1(-loss) * lengths
        if self.detach:
            influence = influence.detach()
        return gather_class(self.class_weights, labels, loss) * self.alpha / (influence + _EPSILON) * loss
