"""Losses for long-tailed classification, by name through `make_loss`."""

from lt_lib.losses.adaptive import GroupDRO, LossProportional
from lt_lib.losses.adjusted import BalancedSoftmax, LogitAdjustedCrossEntropy
from lt_lib.losses.bcl import BCLLoss, balanced_contrastive
from lt_lib.losses.deferral import Deferred, DeferredReweighting
from lt_lib.losses.dot_regression import DotRegressionLoss
from lt_lib.losses.fingerprint import Fingerprint, fingerprint
from lt_lib.losses.focal import FocalLoss
from lt_lib.losses.glmc import GLMCLoss
from lt_lib.losses.influence import InfluenceBalancedLoss
from lt_lib.losses.inverse import InverseLoss, Reweighted
from lt_lib.losses.ldam import LDAMLoss, ldam_margins
from lt_lib.losses.meta import MetaReweighted
from lt_lib.losses.registry import LOSS_NAMES, loss_options, make_loss
from lt_lib.losses.views import ContrastiveViews, MixedViews
from lt_lib.losses.weighted import (
    ClassMeanCrossEntropy,
    WeightedCrossEntropy,
    class_balanced_weights,
    inverse_frequency_weights,
)

__all__ = [
    "LOSS_NAMES",
    "BCLLoss",
    "BalancedSoftmax",
    "ClassMeanCrossEntropy",
    "ContrastiveViews",
    "Deferred",
    "DeferredReweighting",
    "DotRegressionLoss",
    "Fingerprint",
    "FocalLoss",
    "GLMCLoss",
    "GroupDRO",
    "InfluenceBalancedLoss",
    "InverseLoss",
    "LDAMLoss",
    "LogitAdjustedCrossEntropy",
    "LossProportional",
    "MetaReweighted",
    "MixedViews",
    "Reweighted",
    "WeightedCrossEntropy",
    "balanced_contrastive",
    "class_balanced_weights",
    "fingerprint",
    "inverse_frequency_weights",
    "ldam_margins",
    "loss_options",
    "make_loss",
]
