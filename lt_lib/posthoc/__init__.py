"""Corrections of a trained network's logits that need no further training of its features.

Trained runs depend on what is imported here. What judges or compares corrections stands apart, in the modules
`evaluation`, `frontier`, `bias_path`, `last_layer`, `cross_fit` and `gaming`.
"""

from lt_lib.posthoc.adjustment import logit_adjustment, prior_shift
from lt_lib.posthoc.heads import BIASES, BatchNormLinearHead, UnitLinearHead, adjusted_head, with_head
from lt_lib.posthoc.norms import tau_normalise, tau_scales
from lt_lib.posthoc.scaling import Scaling, fit_logit_bias, fit_temperature, fit_vector_scaling
from lt_lib.posthoc.selection import MEASURES, TAUS, TauChoice, choose_tau

__all__ = [
    "BIASES",
    "MEASURES",
    "TAUS",
    "BatchNormLinearHead",
    "Scaling",
    "TauChoice",
    "UnitLinearHead",
    "adjusted_head",
    "choose_tau",
    "fit_logit_bias",
    "fit_temperature",
    "fit_vector_scaling",
    "logit_adjustment",
    "prior_shift",
    "tau_normalise",
    "tau_scales",
    "with_head",
]
