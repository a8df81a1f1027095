"""Focal loss."""

from typing import Any

import torch
from torch import Tensor

from lt_lib.losses._base import ClassLoss, gather_class
from lt_lib.losses.weighted import check_weights
from lt_lib.reweighting._entry import check_number, cross_entropy


class FocalLoss(ClassLoss):
    r"""Focal loss on the softmax, :math:`-w_y (1 - p_y)^\gamma \log p_y` (Lin et al. 2017, arXiv 1708.02002).

    p_y is the probability under the *unweighted* cross-entropy and the class weight stands outside. In
    several released codes the weight enters p = exp(-CE) as well, which is another loss. Splitting a batch
    changes nothing.
    """

    class_weights: Tensor

    def __init__(
        self, classes: int, gamma: float = 2.0, weights: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(classes)
        self.gamma = check_number(gamma, "gamma", low=0)
        vector = torch.ones(classes) if weights is None else check_weights(weights, classes)
        self.register_buffer("class_weights", vector.to(dtype or torch.get_default_dtype()))

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        loss = cross_entropy(logits, labels)
        # the floor keeps the gradient of (1 - p)^gamma finite at p = 1, where the loss is 0
        miss = (-torch.expm1(-loss)).clamp(min=torch.finfo(loss.dtype).tiny)
        return gather_class(self.class_weights, labels, loss) * miss.pow(self.gamma) * loss
