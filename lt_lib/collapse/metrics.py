"""Neural-collapse metrics as functions of class means, within-class covariance and classifier.

Conventions, since packages differ: the global mean is the mean of the class means; covariances divide by n_c
and by C; NC3 is the unsquared Frobenius distance to the *centred* classifier. Everything runs in float64.
No function here forms a C x C matrix.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Collapse:
    """Distances from neural collapse; each is 0 at collapse. Numbers, not logarithms.

    C below counts the classes that have samples; the others are excluded from everything and named in
    `absent`. Fields that need a classifier are None without one. If all class means coincide to rounding,
    the metrics that divide by their spread are nan (all but nc2_floor, nc4 and equinorm_weights) and the
    logit scale is 0. A class whose mean coincides with the global mean has no direction: its pairs are left
    out of the two angles, and equinorm_means shows it.
    """

    nc1: float  # tr(Sigma_W Sigma_B^+) / C, in [0, inf)
    nc2: float  # delta_2: ||M M^T / ||M M^T||_F - P / sqrt(C - 1)||_F, in [nc2_floor, sqrt(2))
    nc2_floor: float  # the least NC2 that this number of features allows (Theorem T1 (vi))
    nc3: float | None  # delta_3: ||P W / ||P W||_F - M / ||M||_F||_F, in [0, 2]
    nc3_uncentred: float | None  # the same with W in place of P W
    nc4: float | None  # share of samples on which classifier and nearest class mean disagree, in [0, 1]
    offset: float | None  # delta_b: sqrt(C / (C - 1)) ||P (b + W mu_G)|| / tau, in [0, inf)
    logit_scale: float | None  # tau: ||P W||_F ||M||_F / (C - 1)
    logit_noise: float | None  # nu: tr(P W Sigma_W W^T P) / tau^2; equals NC1 when NC2 = NC3 = 0
    equiangularity: float  # population std of cos(m_c, m_k) over pairs, in [0, 1]
    max_angle: float  # mean of |cos(m_c, m_k) + 1 / (C - 1)| over pairs, in [0, 2)
    equinorm_means: float  # std / mean of ||m_c||, in [0, sqrt(C - 1)]
    equinorm_weights: float | None  # std / mean of ||w_c||
    rank: int  # numerical rank of M; C - 1 (or d) unless class means coincide
    classes: int  # classes with samples
    absent: tuple[int, ...]  # classes without


def as_double(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, on the CPU if its device has no float64 (MPS)."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(torch.float64)


def group_means(rows: Tensor, group: Tensor, count: Tensor) -> Tensor:
    """Return the means (G, d) of rows (n, d) by `group` (n,), whose sizes are `count` (G,), to about one ulp.

    A sum of n rows alone is off by up to n ulps; the mean of what is left over takes that back.
    """
    zeros, size = rows.new_zeros(len(count), rows.shape[1]), count[:, None]
    means = zeros.index_add(0, group, rows) / size
    return means + zeros.index_add(0, group, rows - means[group]) / size


def centre_rows(rows: Tensor) -> Tensor:
    """Return rows (C, d) minus their mean; those that are zero to rounding are set to zero.

    The bar is `max(C, d) eps ||rows||_F`, that of `mean_spectrum`: below it a row holds rounding errors of
    the means alone, and its direction would be theirs.
    """
    centred = rows - rows.mean(0)
    bar = max(rows.shape) * torch.finfo(rows.dtype).eps * rows.norm()
    return centred.masked_fill((centred.norm(dim=1) <= bar)[:, None], 0.0)


def mean_spectrum(centred: Tensor, resolution: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the non-zero singular values (r,) and right singular vectors (r, d) of centred class means.

    Args:
        centred: (C, d) rows m_c = mu_c - mu_G, which sum to zero.
        resolution: size of the rounding errors in `centred`; singular values below it count as zero.
    """
    classes, dim = centred.shape
    # a tall M has the singular values and right vectors of its d x d triangular factor
    block = torch.linalg.qr(centred, mode="r").R if classes > dim else centred
    _, values, directions = torch.linalg.svd(block, full_matrices=False)
    # rows that sum to zero have rank C - 1 at most: the C-th value is rounding
    values, directions = values[: classes - 1], directions[: classes - 1]
    eps = torch.finfo(values.dtype).eps
    kept = values > max(classes, dim) * eps * max(float(values.max()), resolution)
    return values[kept], directions[kept]


def variability(within: Tensor, values: Tensor, directions: Tensor) -> float:
    """Return NC1 = tr(Sigma_W Sigma_B^+) / C in [0, inf) (Papyan, Han and Donoho 2020).

    With `Sigma_B = M^T M / C` and the singular values s_k, vectors v_k of M this is
    `sum_k v_k^T Sigma_W v_k / s_k^2`. Variability outside the span of the class means does not count, by the
    pseudo-inverse. nan when the class means coincide, where the pseudo-inverse would say 0.
    """
    if len(values) == 0:
        return math.nan
    along = ((directions @ within) * directions).sum(1)
    return float((along / values**2).sum().clamp_min(0))


def etf_distance(values: Tensor, classes: int) -> float:
    """Return NC2, delta_2 = ||M M^T / ||M M^T||_F - P / sqrt(C - 1)||_F, from the singular values of M.

    Both matrices vanish on the ones vector, so delta_2 is a distance between two spectra of C - 1 values. It
    equals `sqrt(2 - 2 ||M||_F^2 / (sqrt(C - 1) ||M^T M||_F))` and keeps its digits near 0, which that form
    does not (it stalls at 1e-8).
    """
    if len(values) == 0:
        return math.nan
    power = (values / values.max()) ** 2
    target = 1 / math.sqrt(classes - 1)
    missing = classes - 1 - len(values)
    return math.sqrt(float((power / power.norm() - target).square().sum()) + missing * target**2)


def direction_distance(first: Tensor, second: Tensor) -> float:
    """Return || A / ||A||_F - B / ||B||_F ||_F in [0, 2]; nan if either is zero."""
    scales = float(first.norm()), float(second.norm())
    if min(scales) == 0:
        return math.nan
    return float((first / scales[0] - second / scales[1]).norm())


def pair_angles(centred: Tensor, block: int = 512) -> tuple[float, float]:
    """Return the std of cos(m_c, m_k) over pairs c < k, and the mean of |cos + 1/(C - 1)|.

    Works in blocks of rows: `block` x C numbers at a time. A row of zero length has no direction, so its
    pairs are left out; the target keeps C. nan when no pair is left.
    """
    target = -1 / (len(centred) - 1)
    lengths = centred.norm(dim=1, keepdim=True)
    kept = lengths[:, 0] > 0
    classes = int(kept.sum())
    if classes < 2:
        return math.nan, math.nan
    unit = centred[kept] / lengths[kept]
    squares = float(unit.square().sum())
    mean = (float(unit.sum(0).square().sum()) - squares) / (classes * (classes - 1))
    sums = [0.0, 0.0]
    for start in range(0, classes, block):
        rows = unit[start : start + block]
        cosines = rows @ unit[start:].T  # (rows, C - start): the pairs not seen yet
        for i, (centre, power) in enumerate(((mean, 2), (target, 1))):
            cosines.diagonal().fill_(centre)  # a row with itself adds nothing
            term = (cosines - centre).abs_().pow_(power)
            # pairs inside the block stand there twice, the others once
            sums[i] += 2 * float(term.sum()) - float(term[:, : len(rows)].sum())
    pairs = classes * (classes - 1)
    return math.sqrt(sums[0] / pairs), sums[1] / pairs


def relative_spread(norms: Tensor) -> float:
    """Return population std / mean, in [0, sqrt(C - 1)]; nan if all norms are zero."""
    mean = float(norms.mean())
    return float(norms.std(correction=0)) / mean if mean > 0 else math.nan


NO_CLASSIFIER: dict[str, Any] = dict.fromkeys(
    ("nc3", "nc3_uncentred", "nc4", "offset", "logit_scale", "logit_noise", "equinorm_weights")
)


def classifier_metrics(
    weight: Tensor, bias: Tensor, centred: Tensor, global_mean: Tensor, within: Tensor
) -> dict[str, Any]:
    """Return the fields of `Collapse` that need a classifier (nc4 apart), by the definitions of Theorem T1.

    Args:
        weight: (C, d).
        bias: (C,).
        centred: (C, d), M, from `centre_rows`.
        global_mean: (d,), mu_G.
        within: (d, d), Sigma_W.
    """
    classes = len(centred)
    w0 = centre_rows(weight)
    scores = weight @ global_mean + bias
    tau = float(w0.norm() * centred.norm()) / (classes - 1)
    offset = math.sqrt(classes / (classes - 1)) * float((scores - scores.mean()).norm())
    noise = float(((w0 @ within) * w0).sum().clamp_min(0))
    return NO_CLASSIFIER | {
        "nc3": direction_distance(w0, centred),
        "nc3_uncentred": direction_distance(weight, centred),
        "offset": offset / tau if tau > 0 else math.nan,
        "logit_scale": tau,
        "logit_noise": noise / tau**2 if tau > 0 else math.nan,
        "equinorm_weights": relative_spread(weight.norm(dim=1)),
    }
