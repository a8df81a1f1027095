"""Theorem T1: collapse makes class losses equal, with constants. Theorem T4: a model where it takes for ever.

Notation of both: C classes, P = I - 1 1^T / C, f_c = P e_c, class means mu_c, mu_G their mean, M the rows
mu_c - mu_G, W_0 = P W, b_0 = P (b + W mu_G). Cross-entropy throughout; every result in float64. The matrices
here are C x C: for thousands of classes use `CollapseMeter`, which has delta_2, delta_3 and delta_b too.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from lt_lib._checks import check_choice, check_counts, check_finite, check_labels
from lt_lib.collapse.losses import class_losses
from lt_lib.collapse.metrics import (
    as_double,
    centre_rows,
    direction_distance,
    etf_distance,
    group_means,
    mean_spectrum,
)

_NEWTON_STEPS = 100  # the iteration is monotone and ends within about ten; this is a fuse


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
        """Bound (iv): rho <= sinh R(tau)."""
        return math.sinh(self.gap_deviation)

    @property
    def required_gap_deviation(self) -> float:
        """Contrapositive of (iv): R(tau) >= arsinh(rho) at every logit scale."""
        return math.asinh(self.rho)


def bound_terms(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> EqualLoss:
    """Return every quantity of Theorem T1 for features (n, d), labels (n,), classifier (C, d) and (C,).

    Raises:
        ValueError: labels outside 0..C-1, a class without samples, shapes that do not fit, numbers that
            are not finite, or a logit scale of 0 (equal class means, or equal rows of the classifier).
    """
    h, w, b = _checked(features, labels, weight, bias)
    labels = labels.to(h.device, torch.int64)
    classes = len(w)
    means = group_means(h, labels, torch.bincount(labels, minlength=classes))
    centre = means.mean(0)
    m, w0 = centre_rows(means), centre_rows(w)
    b0 = b + w @ centre - (b + w @ centre).mean()
    tau = logit_scale(w, means)
    if tau == 0:
        raise ValueError("The logit scale is 0: all class means, or all rows of `weight`, are equal.")
    off = w0 @ m.T + b0[:, None] - tau * _projector(classes)  # columns: the mean of u_i over a class
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
    """
    return _softplus(math.log(classes - 1) - _double(tau))


def logit_scale(weight: Tensor, means: Tensor) -> float:
    """Return tau = ||P W||_F ||M||_F / (C - 1) for a classifier (C, d) and class means (C, d)."""
    w, m = as_double(weight.detach()), as_double(means.detach())
    return float(centre_rows(w).norm() * centre_rows(m).norm()) / (len(w) - 1)


def deviation_bound(delta2: float, delta3: float, delta_b: float, classes: int) -> float:
    """Return Theorem T1 (iii)'s bound on Delta: `t_2 + delta_3 sqrt(1 + sqrt(C - 1) t_2) + delta_b`.

    `t_2 = sqrt((1 - delta_2^2 / 2)^-2 - 1) = delta_2 + O(delta_2^3)`; delta_2 is below sqrt(2).

    Raises:
        ValueError: delta2 outside [0, sqrt(2)).
    """
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


def free_feature_gap(kappa: Any, time: Any, classes: int, omega: float = 1.0) -> Tensor:
    """Return the logit gap of Theorem T4 at time t.

    It is the root tau of `exp(tau) + (C - 1) tau = 1 + omega^2 C^2 / (C - 1) kappa t`: a free feature starts
    at 0 under a fixed simplex ETF head with rows of length omega and follows the gradient flow of `kappa`
    times its cross-entropy. Newton's method from above on a convex function is monotone, so neither
    t = 1e-12 nor t = 1e100 needs care.

    Args:
        kappa: weight of the sample in the objective, >= 0 (1/N for plain, 1/(C n_c) for class-mean CE).
        time: t >= 0; broadcasts with `kappa`.
        classes: C.
        omega: length of the head's rows.

    Returns:
        Tensor float64 of the broadcast shape.

    Raises:
        ValueError: a negative or non-finite right-hand side.
    """
    k, t = np.broadcast_arrays(_double(kappa).numpy(), _double(time).numpy())
    with np.errstate(over="ignore"):
        drive = omega**2 * classes**2 / (classes - 1) * k * t
    if not np.isfinite(drive).all() or (drive < 0).any():
        raise ValueError("`kappa` and `time` must be finite and at least 0, and so must their product.")
    tau = np.minimum(drive / classes, np.log1p(drive))  # both lie above the root
    for _ in range(_NEWTON_STEPS):
        step = (np.expm1(tau) + (classes - 1) * tau - drive) / (np.exp(tau) + classes - 1)
        tau = np.maximum(tau - step, 0)
        if (np.abs(step) <= 4 * np.finfo(float).eps * tau).all():
            break
    return torch.from_numpy(np.asarray(tau))


@dataclass(frozen=True)
class FreeFeatures:
    """State of Theorem T4's model at one time; NC1 is 0 at all times."""

    gap: Tensor  # (C,) logit gap tau_c of the samples of class c, float64
    class_loss: Tensor  # (C,)
    rho: float
    ratio: float  # max / min of class_loss
    tau: float  # logit scale of Theorem T1
    delta2: float
    delta3: float
    delta_b: float


def free_feature_flow(
    class_counts: Any, time: float, omega: float = 1.0, objective: str = "class_mean"
) -> FreeFeatures:
    """Return Theorem T4's model (all features free, fixed ETF head, cross-entropy) at time t > 0.

    Args:
        class_counts: (C,) samples a class.
        time: of the gradient flow from zero features.
        omega: length of the head's rows.
        objective: "class_mean" (kappa = 1/(C n_c)) or "ce" (kappa = 1/N).

    Raises:
        ValueError: time not positive, an unknown objective, a class without samples.
    """
    check_choice(objective, ("ce", "class_mean"), "objective")
    if not time > 0:
        raise ValueError(f"`time` must be positive; found {time:g}. At 0 all features are 0.")
    counts = check_counts(class_counts).to(torch.float64)
    classes = len(counts)
    kappa = 1 / (classes * counts) if objective == "class_mean" else (1 / counts.sum()).expand(classes)
    gap = free_feature_gap(kappa, time, classes, omega)
    # features x_c e_c on ETF axes e_c; P E^T spans the axes, so E = sqrt(C / (C - 1)) P serves as the frame
    frame = math.sqrt(classes / (classes - 1)) * _projector(classes)
    length = gap * (classes - 1) / (omega * classes)
    terms = bound_terms(length[:, None] * frame, torch.arange(classes), omega * frame)
    loss = perfect_loss(gap, classes)
    return FreeFeatures(
        gap=gap,
        class_loss=loss,
        rho=float(loss.std(correction=0) / loss.mean()),
        ratio=float(loss.max() / loss.min()),
        tau=terms.tau,
        delta2=terms.delta2,
        delta3=terms.delta3,
        delta_b=terms.delta_b,
    )


def _softplus(x: Tensor) -> Tensor:
    return softplus(x, threshold=40)  # from 40 on log(1 + exp(x)) is x to the last bit


def _gaps(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit gaps z_y - z_k for k != y, (n, C - 1); a perfect ETF has them all equal to tau."""
    n, classes = logits.shape
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels[:, None], False)
    return (logits.gather(1, labels[:, None]) - logits)[others].reshape(n, classes - 1)


def _projector(classes: int) -> Tensor:
    return torch.eye(classes, dtype=torch.float64) - 1 / classes


def _double(value: Any) -> Tensor:
    return as_double(value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value, dtype=float)))


def _checked(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if weight.ndim != 2 or features.ndim != 2 or features.shape != (len(labels), weight.shape[1]):
        raise ValueError(
            f"`features` must be (n, d), `labels` (n,) and `weight` (C, d); found {tuple(features.shape)}, "
            f"{tuple(labels.shape)} and {tuple(weight.shape)}."
        )
    classes = len(weight)
    check_labels(labels, classes)
    check_counts(torch.bincount(labels.to(torch.int64), minlength=classes))
    w = as_double(weight.detach())
    b = w.new_zeros(classes) if bias is None else as_double(bias.detach())
    if b.shape != (classes,):
        raise ValueError(
            f"`bias` must hold one number for each of the {classes} classes; found {tuple(b.shape)}."
        )
    h = as_double(features.detach())
    for tensor, name in ((h, "features"), (w, "weight"), (b, "bias")):
        check_finite(tensor, name)
    return h, w, b
