"""Theorem T1: collapse makes class losses equal, with constants.

Notation: C classes, P = I - 1 1^T / C, f_c = P e_c, class means mu_c, mu_G their mean, M the rows
mu_c - mu_G, W_0 = P W, b_0 = P (b + W mu_G). Cross-entropy throughout; every result in float64. The matrices
here are C x C: for thousands of classes use `CollapseMeter`, which has delta_2, delta_3 and delta_b too.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lt_lib._checks import as_tensor, check_counts, check_finite, check_labels
from lt_lib.collapse.etf import check_sizes
from lt_lib.collapse.losses import class_losses
from lt_lib.collapse.metrics import (
    as_double,
    centre_rows,
    direction_distance,
    etf_distance,
    group_means,
    mean_spectrum,
)

_SINH_LIMIT = 710.0  # beyond, sinh leaves float64


@dataclass(frozen=True)
class EqualLoss:
    """The quantities of Theorem T1 for one set of features and one linear classifier."""

    class_loss: Tensor  # (C,) L_c, float64
    mean_loss: float  # mean over classes
    std: float  # population std over classes of L_c
    rho: float  # std / mean_loss
    log_ratio: float  # log(max L_c / min L_c)
    tau: float  # logit scale ||W_0||_F ||M||_F / (C - 1)
    perfect: float  # L* = phi(tau), the loss of every class at collapse
    p: float  # p* = exp(-L*)
    delta2: float  # NC2
    delta3: float  # NC3, centred, unsquared
    delta_b: float  # offset
    delta: float  # Delta = ||W_0 M^T + b_0 1^T - tau P||_F / (tau sqrt(C - 1))
    class_deviation: Tensor  # (C,) squared lengths of the columns of that matrix
    class_noise: Tensor  # (C,) v_c = tr(W_0 Sigma_c W_0^T)
    noise: float  # nu = mean_c v_c / tau^2
    gap_deviation: float  # R(tau) = max_{i,k} |u_ik - u_iy|, u_i = P z_i - tau f_y
    best_gap_deviation: float  # the least R over all logit scales: half the range of the logit gaps

    @property
    def first_term(self) -> float:
        """First term of (ii), `(1 - p*) tau Delta`: the std of the losses to first order."""
        return (1 - self.p) * self.tau * self.delta

    @property
    def total(self) -> float:
        """Bound (ii): std_c(L_c) <= first term + max_c(||u_c||^2 + v_c) / 8."""
        return self.first_term + float((self.class_deviation + self.class_noise).max()) / 8

    @property
    def delta_limit(self) -> float:
        """Bound (iii) on Delta by NC2, NC3 and the offset; see `deviation_bound`."""
        return deviation_bound(self.delta2, self.delta3, self.delta_b, len(self.class_loss))

    @property
    def rho_limit(self) -> float:
        """Bound (iv): rho <= sinh R(tau), infinite where that exceeds float64 (R > 710)."""
        return math.sinh(self.gap_deviation) if self.gap_deviation < _SINH_LIMIT else math.inf

    @property
    def required_gap_deviation(self) -> float:
        """Contrapositive of (iv): R(tau) >= arsinh(rho) at every logit scale."""
        return math.asinh(self.rho)


def bound_terms(features: Any, labels: Any, weight: Any, bias: Any = None) -> EqualLoss:
    """Return every quantity of Theorem T1 for features (n, d), labels (n,), classifier (C, d) and (C,).

    Raises:
        ValueError: labels outside 0..C-1, a class without samples, shapes that do not fit, numbers that
            are not finite, fewer than two classes, no features, or a logit scale of 0 (class means, or rows
            of the classifier, that are equal to rounding).
    """
    h, labels, w, b = _checked(features, labels, weight, bias)
    classes = len(w)
    means = group_means(h, labels, torch.bincount(labels, minlength=classes))
    centre = means.mean(0)
    m, w0 = centre_rows(means), centre_rows(w)
    b0 = b + w @ centre - (b + w @ centre).mean()
    tau = logit_scale(w, means)
    if tau == 0:
        raise ValueError("The logit scale is 0: all class means, or all rows of `weight`, are equal.")
    off = w0 @ m.T + b0[:, None] - tau * projector(classes)  # columns: the mean of u_i over a class
    spread = ((h - means[labels]) @ w0.T).square().sum(1)
    noise = class_losses(spread, labels, classes)
    logits = h @ w.T + b
    gaps = _gaps(logits, labels)
    # cross-entropy from the gaps: `cross_entropy` itself loses a small loss in the size of the logits
    loss = class_losses(_softplus(torch.logsumexp(-gaps, 1)), labels, classes)
    perfect = float(perfect_loss(tau, classes))
    return EqualLoss(
        class_loss=loss,
        mean_loss=float(loss.mean()),
        std=float(loss.std(correction=0)),
        rho=float(loss.std(correction=0) / loss.mean()),
        log_ratio=float((loss.max() / loss.min()).log()),
        tau=tau,
        perfect=perfect,
        p=math.exp(-perfect),
        delta2=etf_distance(mean_spectrum(m, float(means.norm()))[0], classes),
        delta3=direction_distance(w0, m),
        delta_b=math.sqrt(classes / (classes - 1)) * float(b0.norm()) / tau,
        delta=float(off.norm()) / (tau * math.sqrt(classes - 1)),
        class_deviation=off.square().sum(0),
        class_noise=noise,
        noise=float(noise.mean()) / tau**2,
        gap_deviation=float((gaps - tau).abs().max()),
        best_gap_deviation=float(gaps.max() - gaps.min()) / 2,
    )


def perfect_loss(tau: Any, classes: int) -> Tensor:
    """Return phi(tau) = log(1 + (C - 1) exp(-tau)): cross-entropy when every logit gap is `tau`.

    Takes a number, array or tensor; returns float64 of the same shape, without overflow at either end.

    Raises:
        ValueError: fewer than two classes.
    """
    check_sizes(classes)
    return _softplus(math.log(classes - 1) - as_numbers(tau))


def logit_scale(weight: Tensor, means: Tensor) -> float:
    """Return tau = ||P W||_F ||M||_F / (C - 1) for a classifier (C, d) and class means (C, d).

    Raises:
        ValueError: fewer than two classes, or no features.
    """
    check_sizes(*weight.shape)
    w, m = as_double(weight.detach()), as_double(means.detach())
    return float(centre_rows(w).norm() * centre_rows(m).norm()) / (len(w) - 1)


def deviation_bound(delta2: float, delta3: float, delta_b: float, classes: int) -> float:
    """Return Theorem T1 (iii)'s bound on Delta: `t_2 + delta_3 sqrt(1 + sqrt(C - 1) t_2) + delta_b`.

    `t_2 = sqrt((1 - delta_2^2 / 2)^-2 - 1) = delta_2 + O(delta_2^3)`; delta_2 is below sqrt(2).

    Raises:
        ValueError: delta2 outside [0, sqrt(2)), or fewer than two classes.
    """
    check_sizes(classes)
    if not 0 <= delta2 < math.sqrt(2):
        raise ValueError(f"`delta2` must be at least 0 and below sqrt(2); found {delta2:g}.")
    half = delta2**2 / 2
    t2 = math.sqrt(half * (2 - half)) / (1 - half)  # (1 - half)^-2 - 1, without its cancellation
    return t2 + delta3 * math.sqrt(1 + math.sqrt(classes - 1) * t2) + delta_b


def first_order_bound(tau: float, delta2: float, delta3: float, delta_b: float, classes: int) -> float:
    """Return `(1 - p*) tau (delta_2 + delta_3 + delta_b)`: Theorem T1 (iii) on std_c(L_c) to first order."""
    return -math.expm1(-float(perfect_loss(tau, classes))) * tau * (delta2 + delta3 + delta_b)


def required_deviation(rho: float, mean_loss: float, tau: float, classes: int) -> float:
    """Return the least `tau Delta` that class losses of this rho need, without within-class noise.

    Contrapositive of Theorem T1 (ii) at v_c = 0, with q = 1 - p* and the given mean over classes of the loss:
    `4 / (C - 1) (sqrt(q^2 + (C - 1) / 2 rho mean_loss) - q)`.
    """
    q = -math.expm1(-float(perfect_loss(tau, classes)))
    need = (classes - 1) / 2 * rho * mean_loss
    return 4 / (classes - 1) * need / (math.sqrt(q * q + need) + q) if need > 0 else 0.0


def _softplus(x: Tensor) -> Tensor:
    return softplus(x, threshold=40)  # from 40 on log(1 + exp(x)) is x to the last bit


def _gaps(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit gaps z_y - z_k for k != y, (n, C - 1); a perfect ETF has them all equal to tau."""
    n, classes = logits.shape
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels[:, None], False)
    return (logits.gather(1, labels[:, None]) - logits)[others].reshape(n, classes - 1)


def projector(classes: int) -> Tensor:
    """Return P = I - 1 1^T / C, float64."""
    return torch.eye(classes, dtype=torch.float64) - 1 / classes


def as_numbers(value: Any) -> Tensor:
    """Return a number, array or tensor in float64."""
    return as_double(as_tensor(value, "value"))


def _checked(features: Any, labels: Any, weight: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    features, labels = as_tensor(features, "features"), as_tensor(labels, "labels")
    weight = as_tensor(weight, "weight")
    if weight.ndim != 2 or features.ndim != 2 or features.shape != (*labels.shape, weight.shape[1]):
        raise ValueError(
            f"`features` must be (n, d), `labels` (n,) and `weight` (C, d); found {tuple(features.shape)}, "
            f"{tuple(labels.shape)} and {tuple(weight.shape)}."
        )
    check_sizes(*weight.shape)
    classes = len(weight)
    labels = check_labels(labels, classes)
    check_counts(torch.bincount(labels, minlength=classes))
    w = as_double(weight.detach())
    b = w.new_zeros(classes) if bias is None else as_double(as_tensor(bias, "bias").detach())
    if b.shape != (classes,):
        raise ValueError(
            f"`bias` must hold one number for each of the {classes} classes; found {tuple(b.shape)}."
        )
    h = as_double(features.detach())
    for tensor, name in ((h, "features"), (w, "weight"), (b, "bias")):
        check_finite(tensor, name)
    return h, labels.to(h.device), w, b
