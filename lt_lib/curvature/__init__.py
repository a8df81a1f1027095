"""Curvature of the loss: Hessian operators, certified eigenpairs, spectral density, and class structure."""

from lt_lib.curvature.class_gradients import ClassGradients, class_gradients, class_loss_gradients
from lt_lib.curvature.density import DensityCurve, Estimate, SpectralDensity, spectral_density
from lt_lib.curvature.eigenpairs import Eigenpairs, UnconvergedWarning, verify
from lt_lib.curvature.head_spikes import (
    CollapsedHead,
    HeadSpikes,
    Level,
    collapsed_head,
    head_hessian,
    head_spikes,
)
from lt_lib.curvature.head_spikes_phases import gap_position, head_ratios, phase_boundaries
from lt_lib.curvature.hessian import GaussNewtonOperator, HessianOperator
from lt_lib.curvature.lanczos import lanczos
from lt_lib.curvature.operators import MatrixOperator, Operator, deflate
from lt_lib.curvature.search import Progress
from lt_lib.curvature.structure import (
    Gap,
    Overlap,
    PredictedOutliers,
    largest_gap,
    orthonormal_rows,
    predicted_outliers,
    subspace_overlap,
)
from lt_lib.curvature.vector_scaling import (
    VectorScaling,
    logit_changes,
    scaling_share,
    vector_scaling_share,
)
from lt_lib.curvature.walks import Lengths, Walk, equal_loss_lengths, project_out, walk

__all__ = [
    "ClassGradients",
    "CollapsedHead",
    "DensityCurve",
    "Eigenpairs",
    "Estimate",
    "Gap",
    "GaussNewtonOperator",
    "HeadSpikes",
    "HessianOperator",
    "Lengths",
    "Level",
    "MatrixOperator",
    "Operator",
    "Overlap",
    "PredictedOutliers",
    "Progress",
    "SpectralDensity",
    "UnconvergedWarning",
    "VectorScaling",
    "Walk",
    "class_gradients",
    "class_loss_gradients",
    "collapsed_head",
    "deflate",
    "equal_loss_lengths",
    "gap_position",
    "head_hessian",
    "head_ratios",
    "head_spikes",
    "lanczos",
    "largest_gap",
    "logit_changes",
    "orthonormal_rows",
    "phase_boundaries",
    "predicted_outliers",
    "project_out",
    "scaling_share",
    "spectral_density",
    "subspace_overlap",
    "vector_scaling_share",
    "verify",
    "walk",
]
