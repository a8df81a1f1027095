"""How each loss is built from class counts and plain options."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lt_lib._checks import check_choice
from lt_lib.losses._base import ClassLoss, CrossEntropy
from lt_lib.losses.adaptive import GroupDRO, LossProportional
from lt_lib.losses.adjusted import BalancedSoftmax, LogitAdjustedCrossEntropy
from lt_lib.losses.bcl import BCLLoss
from lt_lib.losses.deferral import Deferred
from lt_lib.losses.dot_regression import DotRegressionLoss
from lt_lib.losses.focal import FocalLoss
from lt_lib.losses.glmc import GLMCLoss
from lt_lib.losses.influence import InfluenceBalancedLoss
from lt_lib.losses.inverse import InverseLoss
from lt_lib.losses.ldam import LDAMLoss
from lt_lib.losses.meta import MetaReweighted
from lt_lib.losses.weighted import (
    ClassMeanCrossEntropy,
    WeightedCrossEntropy,
    class_balanced_weights,
    inverse_frequency_weights,
)
from lt_lib.reweighting import InverseReweighting

PRESETS = ("as_written", "as_released")


def reweighting_of(counts: Tensor, preset: str | None = None, **options: Any) -> InverseReweighting:
    if preset is None:
        return InverseReweighting(counts, **options)
    check_choice(preset, PRESETS, "preset")
    module: InverseReweighting = getattr(InverseReweighting, preset)(counts, **options)
    return module


def _ce(counts: Tensor) -> ClassLoss:
    return CrossEntropy(len(counts))


def _class_mean(counts: Tensor) -> ClassLoss:
    return ClassMeanCrossEntropy(len(counts))


def _inverse_frequency(counts: Tensor, power: float = 1.0) -> ClassLoss:
    return WeightedCrossEntropy(inverse_frequency_weights(counts, power))


def _class_balanced(counts: Tensor, beta: float = 0.9999) -> ClassLoss:
    return WeightedCrossEntropy(class_balanced_weights(counts, beta))


def _focal(counts: Tensor, gamma: float = 2.0, weights: Any = None) -> ClassLoss:
    return FocalLoss(len(counts), gamma, weights)


def _logit_adjustment(counts: Tensor, tau: float = 1.0) -> ClassLoss:
    return LogitAdjustedCrossEntropy(counts, tau)


def _balanced_softmax(counts: Tensor) -> ClassLoss:
    return BalancedSoftmax(counts)


def _inverse(counts: Tensor, preset: str | None = None, **options: Any) -> ClassLoss:
    return InverseLoss(reweighting_of(counts, preset, **options))


def _ldam(counts: Tensor, max_margin: float = 0.5, scale: float = 30.0) -> ClassLoss:
    return LDAMLoss(counts, max_margin, scale)


def _ib(
    counts: Tensor, alpha: float = 1000.0, detach: bool = False, start_epoch: int | float = 0.5
) -> ClassLoss:
    return Deferred(InfluenceBalancedLoss(counts, alpha, detach), start_epoch, "start_epoch")


def _dr(counts: Tensor, scale: float = 1.0, lengths: str = "unit", detach: bool = True) -> ClassLoss:
    return DotRegressionLoss(len(counts), scale, lengths, detach)


def _group_dro(counts: Tensor, step: float = 0.01, adjustment: float = 0.0) -> ClassLoss:
    return GroupDRO(counts, step, adjustment)


def _loss_proportional(counts: Tensor, clamp: float | None = None) -> ClassLoss:
    return LossProportional(len(counts), clamp)


def _meta(counts: Tensor) -> ClassLoss:
    return MetaReweighted(len(counts))


def _glmc(
    counts: Tensor,
    power: float = 1.2,
    consistency: float = 10.0,
    beta: float = 0.5,
    partner: str = "instance",
    inverse_head: str = "rebalanced",
) -> ClassLoss:
    return GLMCLoss(counts, power, consistency, beta, partner, inverse_head)


def _bcl(
    counts: Tensor,
    temperature: float = 0.07,
    classification: float = 1.0,
    contrast: float = 0.35,
    anchor_in_sum: bool = False,
) -> ClassLoss:
    return BCLLoss(counts, temperature, classification, contrast, anchor_in_sum)


BUILDERS: dict[str, Callable[..., ClassLoss]] = {
    "ce": _ce,
    "class_mean": _class_mean,
    "inverse_frequency": _inverse_frequency,
    "class_balanced": _class_balanced,
    "focal": _focal,
    "balanced_softmax": _balanced_softmax,
    "logit_adjustment": _logit_adjustment,
    "inverse": _inverse,
    "ldam": _ldam,
    "ib": _ib,
    "dr": _dr,
    "group_dro": _group_dro,
    "loss_proportional": _loss_proportional,
    "glmc": _glmc,
    "bcl": _bcl,
    "meta": _meta,
}
