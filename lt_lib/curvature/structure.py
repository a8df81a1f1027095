"""Class structure of a spectrum: predicted outliers, overlap with class directions, where the gap lies."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_vector, check_finite, check_whole
from lt_lib.collapse.metrics import as_double
from lt_lib.curvature.class_gradients import ClassGradients
from lt_lib.curvature.operators import norms


@dataclass(frozen=True)
class PredictedOutliers:
    """Eigenvalues of small Gram matrices: lower bounds of the Gauss-Newton matrix's, k-th against k-th.

    `G >= sum_{c,c'} w_{c,c'} delta_{c,c'} delta_{c,c'}^T >= sum_c w_c delta_c delta_c^T` by Jensen's
    inequality over samples and then over c' (Theorem T3, consequence 5), and eigenvalues are monotone. At
    full neural collapse the head's pair values are exact. A prediction from class means is therefore never
    too large: being below an eigenvalue refutes nothing, being above it shows an error.
    """

    class_values: Tensor  # (C,) float64, largest first: from the C x C Gram matrix
    class_vectors: Tensor  # (C, P) unit predicted eigenvectors, zero rows where the value is 0
    pair_values: Tensor | None  # (C^2,) float64, largest first: from the C^2 x C^2 Gram matrix
    trace_class: float  # trace of the class part
    trace_cross: float | None  # of the differences delta_{c,c'} - delta_c, c' != c
    trace_own: float | None  # of the own-label terms delta_{c,c}


def predicted_outliers(gradients: ClassGradients) -> PredictedOutliers:
    """Return the outliers that class means predict, without an eigensolver on the network.

    For balanced classes and plain averages the C x C matrix is `(C - 1)/C <delta_c, delta_c'>` (Papyan 2019);
    with class shares pi_c its entries are `(C - 1) sqrt(pi_c pi_c') <delta_c, delta_c'>`.

    Args:
        gradients: from `class_gradients`; with `pairs=True` the pair fields are filled.
    """
    scaled = _scaled(gradients.class_vectors, gradients.class_weights)
    values, mixing = torch.linalg.eigh(_gram(scaled))
    values, mixing = values.flip(0).clamp_min(0), mixing.flip(1)
    kept = values > 1e-12 * values.max()
    vectors = mixing.T.to(scaled) @ scaled
    vectors = torch.where(kept[:, None].to(vectors.device), vectors, 0.0)
    lengths = norms(vectors)[:, None].to(vectors).clamp_min(torch.finfo(vectors.dtype).tiny)
    pair_values, cross, own = None, None, None
    if gradients.pair_vectors is not None and gradients.pair_weights is not None:
        flat = _scaled(gradients.pair_vectors.flatten(0, 1), gradients.pair_weights.flatten())
        gram = _gram(flat)
        pair_values = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0)
        own = float(gram.diagonal()[:: len(gradients.counts) + 1].sum())
        # total = own + class + cross, since the cross terms are deviations from the class mean
        cross = float(gram.trace()) - own - float(values.sum())
    return PredictedOutliers(values, vectors / lengths, pair_values, float(values.sum()), cross, own)


@dataclass(frozen=True)
class Overlap:
    """How far vectors lie in the span of some directions."""

    squared: Tensor  # (K,) float64: squared length of each unit vector's projection, in [0, 1]
    angles: Tensor  # (min(K, r),) float64: principal angles between the two spans in degrees, smallest first
    rank: int  # r, dimension of the directions' span
    chance: float  # r / P: expected squared projection of a random vector

    @property
    def mean(self) -> float:
        """Mean squared projection of the vectors."""
        return float(self.squared.mean())


def subspace_overlap(vectors: Tensor, directions: Tensor, tol: float = 1e-6) -> Overlap:
    """Return squared projections of vectors onto the span of directions, and the principal angles.

    Class-mean gradients nearly cancel at a balanced minimum (their weighted sum is close to the gradient), so
    the directions may be dependent: singular values below `tol` times the largest are dropped. Angles come
    from sines where they are small and from cosines where they are not (Bjorck and Golub 1973).

    Args:
        vectors: (K, P), for instance eigenvectors; made orthonormal for the angles.
        directions: (M, P), for instance `class_vectors`.
        tol: relative rank tolerance.

    Raises:
        ValueError: shapes that do not fit, a zero or non-finite vector, or directions that are all zero.
    """
    if vectors.ndim != 2 or directions.ndim != 2 or vectors.shape[1] != directions.shape[1]:
        raise ValueError(
            "`vectors` and `directions` must be rows of one length; found shapes "
            f"{tuple(vectors.shape)} and {tuple(directions.shape)}."
        )
    check_finite(vectors, "vectors")
    check_finite(directions, "directions")
    ours, theirs = orthonormal_rows(vectors, tol), orthonormal_rows(directions, tol)
    unit = as_double(vectors)
    lengths = unit.norm(dim=1, keepdim=True)
    if len(theirs) == 0 or float(lengths.min()) == 0:
        raise ValueError("`vectors` and `directions` must not be zero: a zero vector has no direction.")
    squared = ((unit / lengths) @ theirs.T).square().sum(1).clamp_max(1.0)
    small, large = (ours, theirs) if len(ours) <= len(theirs) else (theirs, ours)
    inner = small @ large.T
    cosines = torch.linalg.svdvals(inner).clamp_max(1.0)
    sines = torch.linalg.svdvals(small - inner @ large).flip(0).clamp_max(1.0)
    angles = torch.where(cosines**2 > 0.5, sines.asin(), cosines.acos()).rad2deg()
    return Overlap(squared.cpu(), angles.cpu(), len(theirs), len(theirs) / vectors.shape[1])


def orthonormal_rows(rows: Tensor, tol: float = 1e-6) -> Tensor:
    """Return an orthonormal basis (r, P) float64 of the rows' span, without singular values <= tol s_1."""
    rows = as_double(rows)
    q, triangle = torch.linalg.qr(rows.T)
    left, values, _ = torch.linalg.svd(triangle)
    rank = int((values > tol * values.max()).sum()) if values.max() > 0 else 0
    return (q @ left[:, :rank]).T


@dataclass(frozen=True)
class Gap:
    """The largest ratio of neighbouring eigenvalues."""

    position: int  # k: lambda_k / lambda_{k+1} is the largest ratio
    ratio: float
    verdict: str  # "C-1", "C", "2C-1" or "none"
    ratios: Tensor  # (n - 1,) float64, entry k - 1 is lambda_k / lambda_{k+1}


def largest_gap(values: Any, classes: int, limit: int | None = None) -> Gap:
    """Return where the spectrum's largest gap lies.

    The rule: among the ratios lambda_k / lambda_{k+1} of the first `limit` of them take the largest, the
    first one if several agree. If its k is C - 1, C or 2C - 1, that is the verdict, else "none". The first
    ratio counts like any other, and nothing is said about whether the largest is large: read `ratio` beside
    it.

    Args:
        values: at least 2C positive eigenvalues, largest first; converged ones.
        classes: C, at least 3.
        limit: number of ratios that compete, at least 2C - 1. None: 2C + 2, or all if there are fewer.

    Raises:
        ValueError: too few values, an unsorted or non-positive one among those used.
    """
    values = as_vector(values, "values").detach().cpu()
    check_finite(values, "values")
    check_whole(classes, "classes", 3)
    if limit is not None:
        check_whole(limit, "limit")
    count = min(2 * classes + 2 if limit is None else limit, len(values) - 1)
    if count < 2 * classes - 1:
        raise ValueError(
            f"`values` must hold at least 2C = {2 * classes} eigenvalues for C = {classes} classes; "
            f"found {len(values)} and `limit` {limit}. Ask the solver for more pairs."
        )
    used = values[: count + 1]
    if bool((used[1:] > used[:-1] * (1 + 1e-6)).any()) or float(used.min()) <= 0:
        raise ValueError(
            f"`values` must be positive and sorted, largest first; found {used.tolist()[:12]}. A negative "
            "one among them has no ratio: lower `limit`, or take the Gauss-Newton matrix."
        )
    ratios = used[:-1] / used[1:]
    position = int(ratios.argmax()) + 1
    names = {classes - 1: "C-1", classes: "C", 2 * classes - 1: "2C-1"}
    return Gap(position, float(ratios[position - 1]), names.get(position, "none"), ratios)


def _scaled(vectors: Tensor, weights: Tensor) -> Tensor:
    return vectors * weights.sqrt().to(vectors)[:, None]


def _gram(rows: Tensor, block: int = 1 << 20) -> Tensor:
    """Inner products of rows in float64 on the CPU, a block of columns at a time."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for start in range(0, math.ceil(rows.shape[1] / block)):
        part = as_double(rows[:, start * block : (start + 1) * block])
        total += (part @ part.T).cpu()
    return total
