"""Losses on logits that are shifted by the class prior while training."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_counts
from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting._entry import check_number, cross_entropy


class LogitAdjustedCrossEntropy(ClassLoss):
    r"""Cross-entropy of :math:`z_k + \tau\log\pi_k` (Menon et al. 2021, arXiv 2007.07314).

    The shift is *added* while training, so that a tail class must win by a margin; the network's own logits
    are then used as they are at test time. The post-hoc correction of a network trained without it
    *subtracts* the shift and is another function: use one of the two. tau = 1 is balanced softmax (Ren et al.
    2020, arXiv 2007.10740), which adds log n_k: the same up to a common constant.

    Splitting a batch changes nothing.
    """

    shift: Tensor

    def __init__(self, class_counts: Any, tau: float = 1.0, dtype: torch.dtype | None = None) -> None:
        tau = check_number(tau, "tau")
        counts = check_counts(class_counts).to(torch.float64)
        super().__init__(len(counts))
        shift = tau * (counts / counts.sum()).log()
        self.register_buffer("shift", shift.to(dtype or torch.get_default_dtype()))  # (C,)

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        return cross_entropy(logits + self.shift.to(logits.dtype), labels)


class BalancedSoftmax(LogitAdjustedCrossEntropy):
    r"""Cross-entropy of :math:`z_k + \log n_k` (Ren et al. 2020, arXiv 2007.10740)."""

    def __init__(self, class_counts: Any, dtype: torch.dtype | None = None) -> None:
        super().__init__(class_counts, 1.0, dtype)
        counts = check_counts(class_counts).to(torch.float64)
        self.shift.copy_(counts.log())
