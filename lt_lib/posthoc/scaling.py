r"""Temperature, vector scaling and a logit bias, fitted to calibration data by convex maximum likelihood.

All three replace the logits z by :math:`s_c z_c + t_c` and minimise the mean of
:math:`-\log\mathrm{softmax}_y` over samples, or over classes ("balanced": each class counts alike, whatever
its calibration images). The mean is convex in (s, t). Sums and solver run in float64 on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax
from torch import Tensor

from lt_lib.posthoc.adjustment import check_logits
from lt_lib.posthoc.selection import check_calibration
from lt_lib.reweighting._entry import check_number

_CONVERGED = 1e-6  # largest entry of the gradient, in nats for each unit of a parameter
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """Logits `scales * z + shift`; call it on logits (n, C), or give both to `adjusted_head`."""

    scales: Tensor  # (C,) float64
    shift: Tensor  # (C,) float64, sum 0, in nats
    loss: float  # the minimised mean, in nats
    gradient: float  # largest entry of its gradient at the end

    def __call__(self, logits: Any) -> Tensor:
        """Return the changed logits (n, C), in their dtype (whole numbers: float64) and on their device.

        Raises:
            ValueError: `logits` are not (n, C) of the fitted C classes, not finite, or probabilities.
        """
        values = check_logits(logits)
        if values.shape[1] != len(self.scales):
            raise ValueError(
                f"`logits` must have one column for each of the {len(self.scales)} classes of the fit; found "
                f"{values.shape[1]}."
            )
        return values * self.scales.to(values) + self.shift.to(values)

    @property
    def temperature(self) -> float:
        """1 / scale, of temperature scaling; else of the mean scale."""
        return 1 / float(self.scales.mean())


def fit_temperature(logits: Any, labels: Any, balanced: bool = False) -> Scaling:
    r"""Return the temperature T > 0 with the least negative log likelihood of :math:`z/T` (Guo et al. 2017).

    arXiv 1706.04599, section 4.2. The derivative in 1 / T,
    :math:`\sum_iw_i(\mathbb E_{p_i}z-z_{iy_i})`, rises, so its root is found by bracketing; predicted classes
    do not change.

    Args:
        logits: of calibration images, (n, C).
        labels: of the images, (n,), each class there.
        balanced: weigh classes alike instead of images (the paper's).

    Raises:
        ValueError: see `choose_tau`; or no positive, finite temperature is best, because every image is
            classified rightly or the logits say less than none.
    """
    z, y, weights = _enter(logits, labels, balanced)
    right = z[np.arange(len(y)), y]

    def slope(beta: float) -> float:
        p = np.exp(log_softmax(beta * z, axis=1))
        return float(weights @ ((p * z).sum(1) - right))

    if not (right < z.max(1)).any():
        raise ValueError(
            "Every calibration image is classified rightly, so the lower the temperature the better, without "
            "end. Set more or harder images aside; training images do not serve."
        )
    if slope(0.0) >= 0:
        raise ValueError(
            "The logits do not favour the right classes of the calibration images, so no positive "
            "temperature is best. Look for permuted labels or classes."
        )
    high = 1.0 / max(float(np.ptp(z, axis=1).max()), 1e-300)
    while slope(high) < 0:
        high *= 2
    beta = float(brentq(slope, 0.0, high, xtol=1e-300, rtol=4 * np.finfo(float).eps))
    classes = z.shape[1]
    return _result(z, y, weights, np.full(classes, beta), np.zeros(classes), abs(slope(beta)))


def fit_logit_bias(logits: Any, labels: Any, balanced: bool = True) -> Scaling:
    r"""Return the bias with the greatest (balanced) log likelihood of :math:`z_c+t_c`.

    It exists and is unique up to a common constant whenever each class is among the labels. With true
    posteriors and `balanced` it is :math:`-\log\pi_c`, what logit adjustment adds without data, and by
    Theorem T5 no rule on the same logits has a better balanced accuracy.

    Args:
        logits: of calibration images, (n, C).
        labels: of the images, (n,), each class there.
        balanced: weigh classes alike; False weighs images.

    Raises:
        ValueError: see `choose_tau`; or the solver did not converge.
    """
    z, y, weights = _enter(logits, labels, balanced)
    classes = z.shape[1]

    def objective(t: Floats) -> tuple[float, Floats]:
        loss, residual = _loss(z + t, y, weights)
        return loss, residual.sum(0)

    t, gradient = _minimum(objective, np.zeros(classes))
    return _result(z, y, weights, np.ones(classes), t, gradient)


def fit_vector_scaling(logits: Any, labels: Any, balanced: bool = False, ridge: float = 0.0) -> Scaling:
    r"""Return scales and shift with the least negative log likelihood of :math:`s_cz_c+t_c`.

    Vector scaling of Guo et al. 2017 (arXiv 1706.04599, section 4.2): matrix scaling with a diagonal matrix.
    2C parameters overfit small calibration parts; `ridge` adds
    :math:`\frac{\text{ridge}}2(\|s-1\|^2+\|t\|^2)`, which the paper has not. Scales may come out negative.

    Args:
        logits: of calibration images, (n, C).
        labels: of the images, (n,), each class there.
        balanced: weigh classes alike instead of images (the paper's).
        ridge: strength of the pull towards no change, at least 0.

    Raises:
        ValueError: see `choose_tau`; or, without `ridge`, the fit classifies every image rightly, so that no
            finite scales are best; or the solver did not converge.
    """
    pull = check_number(ridge, "ridge", low=0)
    z, y, weights = _enter(logits, labels, balanced)
    classes, unit = z.shape[1], max(float(np.sqrt(np.mean(z**2))), 1e-12)

    def objective(theta: Floats) -> tuple[float, Floats]:  # theta: unit * (s - 1), then t
        change = theta[:classes] / unit
        loss, residual = _loss((1 + change) * z + theta[classes:], y, weights)
        loss += pull / 2 * float(change @ change + theta[classes:] @ theta[classes:])
        scales = ((residual * z).sum(0) + pull * change) / unit
        return loss, np.concatenate([scales, residual.sum(0) + pull * theta[classes:]])

    theta, gradient = _minimum(objective, np.zeros(2 * classes))
    scales, shift = 1 + theta[:classes] / unit, theta[classes:]
    if pull == 0 and ((scales * z + shift).argmax(1) == y).all():
        raise ValueError(
            "The scaled logits classify every calibration image rightly, so the larger the scales the "
            "better, without end. Pass a `ridge` above 0, or set more images aside."
        )
    return _result(z, y, weights, scales, shift, gradient)


def _enter(logits: Any, labels: Any, balanced: bool) -> tuple[Floats, NDArray[np.int64], Floats]:
    values = check_logits(logits).detach().cpu().double()
    truth = check_calibration(labels, values.shape[1])
    if len(truth) != len(values):
        raise ValueError(f"`logits` and `labels` must be equally long; found {len(values)} and {len(truth)}.")
    counts = torch.bincount(truth, minlength=values.shape[1]).double()
    weights = 1 / (len(counts) * counts[truth]) if balanced else torch.full((len(truth),), 1 / len(truth))
    return values.numpy(), truth.numpy(), weights.double().numpy()


def _loss(z: Floats, y: NDArray[np.int64], weights: Floats) -> tuple[float, Floats]:
    """Return the mean loss and its gradient in the logits (n, C)."""
    log_p = log_softmax(z, axis=1)
    rows = np.arange(len(y))
    residual = np.exp(log_p)
    residual[rows, y] -= 1
    return float(-weights @ log_p[rows, y]), residual * weights[:, None]


def _minimum(objective: Callable[[Floats], tuple[float, Floats]], start: Floats) -> tuple[Floats, float]:
    options = {"maxiter": 20_000, "maxfun": 100_000, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    gradient = float(np.abs(objective(found.x)[1]).max())
    if not gradient <= _CONVERGED:
        raise ValueError(
            f"The fit stopped where an entry of its gradient is {gradient:.1e} (at most {_CONVERGED:.0e} "
            "counts as converged). Its optimum may lie at infinity: pass a `ridge`, or set more images aside."
        )
    return found.x, gradient


def _result(
    z: Floats, y: NDArray[np.int64], weights: Floats, scales: Floats, shift: Floats, gradient: float
) -> Scaling:
    shift = shift - shift.mean()  # a common constant changes no probability
    loss = _loss(scales * z + shift, y, weights)[0]
    return Scaling(torch.from_numpy(scales), torch.from_numpy(shift), loss, gradient)
