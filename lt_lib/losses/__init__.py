"""Losses for long-tailed classification, by name through `make_loss`."""

from lt_lib.losses.adjusted import BalancedSoftmax, LogitAdjustedCrossEntropy
from lt_lib.losses.deferral import Deferred
from lt_lib.losses.focal import FocalLoss
from lt_lib.losses.inverse import InverseLoss
from lt_lib.losses.registry import LOSS_NAMES, loss_options, make_loss
from lt_lib.losses.weighted import (
    ClassMeanCrossEntropy,
    WeightedCrossEntropy,
    class_balanced_weights,
    inverse_frequency_weights,
)

__all__ = [
    "LOSS_NAMES",
    "BalancedSoftmax",
    "ClassMeanCrossEntropy",
    "Deferred",
    "FocalLoss",
    "InverseLoss",
    "LogitAdjustedCrossEntropy",
    "WeightedCrossEntropy",
    "class_balanced_weights",
    "inverse_frequency_weights",
    "loss_options",
    "make_loss",
]
