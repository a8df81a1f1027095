"""Theorem T4: a model in which collapse makes class losses equal, but takes for ever.

C classes with free features under a fixed simplex ETF head, trained by gradient flow; float64 throughout.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lt_lib._checks import check_choice, check_counts
from lt_lib.collapse.bounds import as_numbers, bound_terms, perfect_loss, projector
from lt_lib.collapse.etf import check_sizes

_NEWTON_STEPS = 100  # the iteration is monotone and ends within about ten; this is a fuse


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
        ValueError: a negative or non-finite right-hand side, or fewer than two classes.
    """
    check_sizes(classes)
    k, t = np.broadcast_arrays(as_numbers(kappa).numpy(), as_numbers(time).numpy())
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
        ValueError: time not positive, an unknown objective, a class without samples, a single class.
    """
    check_choice(objective, ("ce", "class_mean"), "objective")
    if not time > 0:
        raise ValueError(f"`time` must be positive; found {time:g}. At 0 all features are 0.")
    counts = check_counts(class_counts).to(torch.float64)
    classes = len(counts)
    check_sizes(classes)
    kappa = 1 / (classes * counts) if objective == "class_mean" else (1 / counts.sum()).expand(classes)
    gap = free_feature_gap(kappa, time, classes, omega)
    # features x_c e_c on ETF axes e_c; P E^T spans the axes, so E = sqrt(C / (C - 1)) P serves as the frame
    frame = math.sqrt(classes / (classes - 1)) * projector(classes)
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
