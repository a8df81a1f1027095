"""Spectral surgery: a trained network's weights moved along Hessian spikes to rebalance its classes.

Method: Vigna and Bontemps, arXiv 2605.07790. What is moved, and by how much, comes from the sensitivity of
each class's accuracy to each spike, measured on held-out images.
"""

from lt_lib.surgery.acceptance import Verdict, judge
from lt_lib.surgery.amplitude import (
    Amplitude,
    AmplitudeState,
    FixedAmplitude,
    GammaDecay,
    SignalToNoise,
    energy_radius,
)
from lt_lib.surgery.coefficients import Coefficients, solve_coefficients, spike_coefficients
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages, check_disjoint
from lt_lib.surgery.deflated import DeflatedOperation, deflated_operate
from lt_lib.surgery.effective_rank import RankSummary, effective_rank, rank_summary
from lt_lib.surgery.forward_mode import LinearLogits, linear_logits
from lt_lib.surgery.guards import allowed_change, guard_preset
from lt_lib.surgery.loop import Step, operate
from lt_lib.surgery.movement import class_accuracy_at, displaced
from lt_lib.surgery.operation import Operation
from lt_lib.surgery.pressure import class_pressure, suggest_power
from lt_lib.surgery.sensitivity import Sensitivity, class_sensitivity, measure_sensitivity
from lt_lib.surgery.state import SurgeryState
from lt_lib.surgery.trace import Iteration

__all__ = [
    "Amplitude",
    "AmplitudeState",
    "Calibration",
    "Coefficients",
    "DeflatedOperation",
    "FixedAmplitude",
    "GammaDecay",
    "HessianImages",
    "Iteration",
    "LinearLogits",
    "Operation",
    "RankSummary",
    "Sensitivity",
    "SignalToNoise",
    "Step",
    "SurgeryConfig",
    "SurgeryState",
    "Verdict",
    "allowed_change",
    "check_disjoint",
    "class_accuracy_at",
    "class_pressure",
    "class_sensitivity",
    "deflated_operate",
    "displaced",
    "effective_rank",
    "energy_radius",
    "guard_preset",
    "judge",
    "linear_logits",
    "measure_sensitivity",
    "operate",
    "rank_summary",
    "solve_coefficients",
    "spike_coefficients",
    "suggest_power",
]
