"""Cross-entropy under weights that training learns at each step (meta-learned reweighting)."""

from typing import Any

from torch import Tensor

from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting._entry import cross_entropy, widen


class MetaReweighted(ClassLoss):
    r"""Weighted cross-entropy :math:`\sum_i w_i(-\log p_{y_i})` (Ren et al. 2018, arXiv 1803.09050).

    The weights w (B,), not negative and of sum one or all zero, are those that a step on a class-balanced
    batch asks for. They come as `features` from the recipe "meta", `lt_lib.training.meta`, which says how
    they are found and where it differs from the paper. The terms of `per_sample` are B w_i times the
    cross-entropy. Samples of equal weight 1 / B give plain cross-entropy.
    """

    recipe = "meta"

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        if not isinstance(features, Tensor) or features.shape != labels.shape:
            found = tuple(features.shape) if isinstance(features, Tensor) else features
            raise ValueError(
                f"The loss `meta` needs a weight for each of the {len(labels)} samples as `features`; found "
                f"{found}. The recipe `meta` of `lt_lib.training` passes them; by hand take "
                "`lt_lib.training.meta_weights`."
            )
        weights = widen(features).to(logits.dtype).detach()
        return len(labels) * weights * cross_entropy(logits, labels)
