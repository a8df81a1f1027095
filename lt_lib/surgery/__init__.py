"""Spectral surgery: a trained network's weights moved along Hessian spikes to rebalance its classes.

Method: Vigna and Bontemps, arXiv 2605.07790. What is moved, and by how much, comes from the sensitivity of
each class's accuracy to each spike, measured on held-out images.
"""

from lt_lib.surgery.amplitude import (
    Amplitude,
    AmplitudeState,
    FixedAmplitude,
    GammaDecay,
    SignalToNoise,
    energy_radius,
)
from lt_lib.surgery.coefficients import Coefficients, solve_coefficients, spike_coefficients
from lt_lib.surgery.effective_rank import RankSummary, effective_rank, rank_summary
from lt_lib.surgery.forward_mode import LinearLogits, linear_logits
from lt_lib.surgery.guards import allowed_change, guard_preset
from lt_lib.surgery.movement import class_accuracy_at, displaced
from lt_lib.surgery.pressure import class_pressure, suggest_power
from lt_lib.surgery.sensitivity import Sensitivity, class_sensitivity, measure_sensitivity

__all__ = [
    "Amplitude",
    "AmplitudeState",
    "Coefficients",
    "FixedAmplitude",
    "GammaDecay",
    "LinearLogits",
    "RankSummary",
    "Sensitivity",
    "SignalToNoise",
    "allowed_change",
    "class_accuracy_at",
    "class_pressure",
    "class_sensitivity",
    "displaced",
    "effective_rank",
    "energy_radius",
    "guard_preset",
    "linear_logits",
    "measure_sensitivity",
    "rank_summary",
    "solve_coefficients",
    "spike_coefficients",
    "suggest_power",
]
