"""Cross-entropy under weights that training learns at each step (meta-learned reweighting)."""

from typing import Any

from torch import Tensor

from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting._entry import cross_entropy, widen

_TOLERANCE = 0.01  # of the sum: weights of bfloat16 are rounded


class MetaReweighted(ClassLoss):
    r"""Weighted cross-entropy :math:`\sum_i w_i(-\log p_{y_i})` (Ren et al. 2018, arXiv 1803.09050).

    The weights w (B,), not negative and of sum one or all zero, are those that a step on a class-balanced
    batch asks for. They come as `features` from the recipe "meta", `lt_lib.training.meta`, which says how
    they are found and where it differs from the paper. The terms of `per_sample` are B w_i times the
    cross-entropy. Samples of equal weight 1 / B give plain cross-entropy. The values of the weights are
    checked on a CPU only, where that does not wait for a device; NaN passes, into the loss.
    """

    recipe = "meta"

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        tensor = isinstance(features, Tensor)
        if not tensor or features.shape != labels.shape or not features.is_floating_point():
            found = f"shape {tuple(features.shape)} of {features.dtype}" if tensor else features
            raise ValueError(
                f"The loss `meta` needs a weight for each of the {len(labels)} samples as `features`; found "
                f"{found}. The recipe `meta` of `lt_lib.training` passes them; by hand take "
                "`lt_lib.training.meta_weights`."
            )
        weights = widen(features).to(logits.dtype).detach()
        _check_weights(weights)
        return len(labels) * weights * cross_entropy(logits, labels)


def _check_weights(weights: Tensor) -> None:
    """Refuse weights (B,) that are negative, or neither of sum one nor all zero, on a CPU.

    Raises:
        ValueError: they are.
    """
    if weights.device.type != "cpu":
        return
    low, total = float(weights.amin()), float(weights.sum())
    if low < 0 or (total != 0 and abs(total - 1) > _TOLERANCE):
        raise ValueError(
            "The weights of the loss `meta` must be at least 0 and have sum one, or be all zero; found "
            f"{low:g} as the smallest and the sum {total:g}. Clamp them at 0 and divide by their sum."
        )
