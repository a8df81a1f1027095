"""Neural collapse: the simplex ETF, NC1 to NC4 in one pass, loss imbalance, and the equal-loss theorem."""

from lt_lib.collapse.bounds import (
    EqualLoss,
    bound_terms,
    deviation_bound,
    first_order_bound,
    logit_scale,
    perfect_loss,
    required_deviation,
)
from lt_lib.collapse.etf import nc2_floor, simplex_etf
from lt_lib.collapse.free_features import FreeFeatures, free_feature_flow, free_feature_gap
from lt_lib.collapse.losses import class_losses, loss_imbalance, loss_ratio
from lt_lib.collapse.meter import CollapseMeter, neural_collapse
from lt_lib.collapse.metrics import Collapse

__all__ = [
    "Collapse",
    "CollapseMeter",
    "EqualLoss",
    "FreeFeatures",
    "bound_terms",
    "class_losses",
    "deviation_bound",
    "first_order_bound",
    "free_feature_flow",
    "free_feature_gap",
    "logit_scale",
    "loss_imbalance",
    "loss_ratio",
    "nc2_floor",
    "neural_collapse",
    "perfect_loss",
    "required_deviation",
    "simplex_etf",
]
