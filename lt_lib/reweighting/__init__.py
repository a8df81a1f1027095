"""Inverse reweighting: the closed form, the macro factor and the module (arXiv 2605.10047, Theorem T2)."""

from lt_lib.reweighting.closed_form import inverse_weights, weight_peak
from lt_lib.reweighting.macro import expected_batch_counts, macro_weights
from lt_lib.reweighting.module import InverseReweighting

__all__ = ["InverseReweighting", "expected_batch_counts", "inverse_weights", "macro_weights", "weight_peak"]
