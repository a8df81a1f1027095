"""A new last layer by convex regression on the features of calibration images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

from lt_lib._checks import check_finite
from lt_lib.metrics.calibration_error import image_weights
from lt_lib.nets.heads import LinearHead
from lt_lib.posthoc.adjustment import as_floats
from lt_lib.posthoc.selection import check_calibration
from lt_lib.reweighting._entry import check_number

_CONVERGED = 1e-6  # largest entry of the gradient, in nats for each unit of a parameter


@dataclass(frozen=True)
class LastLayer:
    """Logits `h @ weight.T + bias` of features h (n, d)."""

    weight: Tensor  # (C, d) float64
    bias: Tensor  # (C,) float64
    loss: float  # the minimised objective, in nats
    gradient: float  # largest entry of its gradient at the end

    def __call__(self, features: Any) -> Tensor:
        """Return logits (n, C) of features (n, d), in their dtype."""
        values = as_floats(features, "features")
        return values @ self.weight.to(values).T + self.bias.to(values)

    def head(self) -> LinearHead:
        """Return it as a head in float32, for `with_head`."""
        head = LinearHead(self.weight.shape[1], len(self.weight))
        with torch.no_grad():
            head.weight.copy_(self.weight)
            assert head.bias is not None
            head.bias.copy_(self.bias)
        return head


def fit_last_layer(
    features: Any, labels: Any, classes: int, ridge: float, balanced: bool = True, start: Any = None
) -> LastLayer:
    r"""Return weights and bias that minimise the mean cross-entropy and :math:`\frac{ridge}2\|W-W_0\|_F^2`.

    Last-layer retraining on images that were held out and whose groups count alike, here classes (deep
    feature reweighting, Kirichenko et al. 2023, arXiv 2204.02937, section 4). With W_0 = 0 it is their
    logistic regression, but for their l1 penalty, subsampling and averaging; with `start` the pull is towards
    the trained head, so that `ridge` runs from a free last layer (0) to the trained weights with a fitted
    bias (infinity). The bias is never penalised. The objective is convex: solved in float64 by L-BFGS,
    without a seed. `retrain_classifier` is the stochastic variant.

    Args:
        features: what the head's weight acts on, of calibration images, (n, d).
        labels: of the images, (n,), each class there.
        classes: C.
        ridge: above 0, so that the optimum exists where features separate the classes.
        balanced: weigh classes alike instead of images.
        start: W_0 (C, d); None for 0.

    Raises:
        ValueError: see `choose_tau`; shapes that do not fit, a value that is not finite, `ridge` not above 0,
            or the solver did not converge.
    """
    h = as_floats(features, "features").detach().cpu().double()
    truth = check_calibration(labels, classes)
    if h.ndim != 2 or len(h) != len(truth):
        raise ValueError(
            f"`features` must be (n, d) for {len(truth)} labels; found shape {tuple(h.shape)}. Pass what "
            "`evaluate` returns as `features`."
        )
    check_finite(h, "features")
    pull = check_number(ridge, "ridge", low=0, open_low=True)
    origin = _origin(start, classes, h.shape[1]).numpy()
    x, weights = h.numpy(), image_weights(truth, balanced).numpy()
    rows, y, shape = np.arange(len(truth)), truth.numpy(), (classes, h.shape[1])

    # steps in W are scaled so that its curvature is about that of the bias, whatever the pull
    unit = np.sqrt(1 + 2 * pull + np.mean(x**2))

    def objective(theta: Any) -> tuple[float, Any]:  # theta: unit * (W - W_0), then the bias
        change = theta[:-classes].reshape(shape) / unit
        log_p = log_softmax(x @ (origin + change).T + theta[-classes:], axis=1)
        residual = np.exp(log_p)
        residual[rows, y] -= 1
        residual *= weights[:, None]
        loss = -weights @ log_p[rows, y] + pull / 2 * np.sum(change**2)
        slope = (residual.T @ x + pull * change) / unit
        return float(loss), np.concatenate([slope.ravel(), residual.sum(0)])

    first = np.zeros(origin.size + classes)
    options = {"maxiter": 20_000, "maxfun": 100_000, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10}
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options=options).x
    loss, slope = objective(found)
    if not np.abs(slope).max() <= _CONVERGED:
        raise ValueError(
            f"The fit stopped where an entry of its gradient is {np.abs(slope).max():.1e} (at most "
            f"{_CONVERGED:.0e} counts as converged). Raise `ridge`, or scale the features."
        )
    bias = torch.from_numpy(found[-classes:])
    weight = torch.from_numpy(origin + found[:-classes].reshape(shape) / unit)
    return LastLayer(weight, bias - bias.mean(), loss, float(np.abs(slope).max()))


def _origin(start: Any, classes: int, dim: int) -> Tensor:
    if start is None:
        return torch.zeros(classes, dim, dtype=torch.float64)
    rows = as_floats(start, "start").detach().cpu().double()
    if tuple(rows.shape) != (classes, dim):
        raise ValueError(f"`start` must be (C, d) = ({classes}, {dim}); found {tuple(rows.shape)}.")
    check_finite(rows, "start")
    return rows
