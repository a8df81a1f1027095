"""The step of surgery: how far to go along each spike, so that weak classes gain and strong ones keep."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lt_lib._checks import as_tensor, as_vector, check_choice, check_finite
from lt_lib.surgery.guards import allowed_change
from lt_lib.surgery.pressure import class_pressure
from lt_lib.surgery.programme import Solution, is_pinned, maximise

SHAPES = ("ball", "box")


@dataclass(frozen=True)
class Coefficients:
    """Lengths along the spikes, what they are predicted to do, and whether they are the best ones."""

    alpha: Tensor  # (K,) float64, a length along each unit direction; all zero where no step is worth taking
    predicted: Tensor  # (C,) float64, S^T alpha: predicted change of each class's accuracy
    gain: float  # w^T S^T alpha: predicted change of the weighted accuracy, at least 0
    floors: Tensor  # (C,) float64, lowest change allowed; -inf for a free class
    active: tuple[int, ...]  # guarded classes that are predicted to fall to their floor
    at_limit: bool  # whether the ball's radius, or a side of the box, is reached
    feasible: bool  # whether any step within the radius meets all floors; without one, alpha is zero
    converged: bool  # whether `gap` certifies the optimum
    gap: float  # upper bound on the gain that is missed, by duality, as a share of the gain without guards
    status: str  # a sentence: what was found, and why the step is zero where it is


def solve_coefficients(
    S: Any,
    pressure: Any,
    accuracy: Any,
    radius: float,
    shape: str = "ball",
    values: Any = None,
    strong: float = 0.85,
    max_loss: float = 0.01,
    others: float | None = None,
    *,
    baseline: Any = None,
    strong_by: str = "current",
    cumulative: bool = False,
) -> Coefficients:
    """Return the best step `alpha` in a ball or a box that keeps the strong classes (MB2, arXiv 2605.07790).

    `max_alpha sum_j w_j (S^T alpha)_j` subject to `||alpha|| <= radius` ("ball") or
    `|alpha_i| <= radius sqrt(lambda_min / lambda_i)` ("box": the same loss energy 1/2 lambda_i alpha_i^2 for
    each spike, released ISIC-2019 runs), and `(S^T alpha)_j >= floor_j`, with the floors of `allowed_change`.
    The ball's optimum is unique wherever its radius is reached; a box may have several of equal gain.

    Solved in units of the radius, so that those of `S` do not matter: with no guard in the way in closed
    form, else in the ball by sequential least squares (SLSQP) with exact gradients, in the box as the linear
    programme that it is (HiGHS). The optimum is certified by a dual bound, whatever the solver reports. The
    released code calls SLSQP for both shapes, with numerical gradients and all guards folded into their
    minimum (which has kinks), and takes what it returns, converged or not.

    Args:
        S: (K, C) change of each class's accuracy per unit length along each direction.
        pressure: (C,) weights w of `class_pressure`, at least 0; used as they are.
        accuracy: (C,) in 0..1, on the images that S was measured on.
        radius: alpha_max > 0, a length in parameter space.
        shape: one of `SHAPES`.
        values: (K,) positive eigenvalues of the directions; needed by the box.
        strong: accuracy above which a class is strong.
        max_loss: what a strong class may be predicted to lose.
        others: what another class may; None: anything.
        baseline: (C,) accuracy of the untouched model; needed by the next two.
        strong_by: whether the "current" or the "baseline" accuracy makes a class strong.
        cumulative: whether losses count from the baseline, all steps together.

    Raises:
        ValueError: shapes that do not fit, NaN or infinite sensitivities, a radius that is not positive,
            negative weights or only zeros, a box without positive `values`, or limits outside their range.
    """
    matrix, w = _sensitivities(S), _weights(pressure)
    if matrix.shape[1] != len(w):
        raise ValueError(
            f"`S` must be (K, C) with a column for each of the {len(w)} classes of `pressure`; found shape "
            f"{tuple(matrix.shape)}."
        )
    floors = allowed_change(
        as_vector(accuracy, "accuracy", len(w)),
        strong,
        max_loss,
        others,
        baseline=baseline,
        strong_by=strong_by,
        cumulative=cumulative,
    )
    lengths = _lengths(radius, shape, values, len(matrix))
    changes = matrix * lengths[:, None]  # (K, C): of accuracy, at the full length of each direction
    found = maximise(changes, w.numpy(), floors.numpy(), shape)
    return _result(matrix, w, floors, lengths, changes, found, shape)


def spike_coefficients(
    S: Any, accuracy: Any, radius: float, power: float = 1.0, strong: float = 0.85, max_loss: float = 0.01
) -> Tensor:
    """Return the step `alpha` (K,) of the paper's text: weights `(1 - a_j)^p`, ball, strong classes spared.

    `solve_coefficients` says whether and why a step is zero; this returns the coefficients alone.

    Raises:
        ValueError: as `class_pressure` and `solve_coefficients`.
        RuntimeError: the optimum could not be certified.
    """
    found = solve_coefficients(
        S, class_pressure(accuracy, power), accuracy, radius, strong=strong, max_loss=max_loss
    )
    if not found.converged:
        raise RuntimeError(found.status)
    return found.alpha


def _sensitivities(S: Any) -> NDArray[np.float64]:
    matrix = as_tensor(S, "S").detach().cpu()
    if matrix.ndim != 2 or 0 in matrix.shape or matrix.is_complex():
        raise ValueError(
            "`S` must be a real matrix (K, C), a row for each direction and a column for each class; found "
            f"shape {tuple(matrix.shape)} of {matrix.dtype}."
        )
    check_finite(matrix, "S")
    return matrix.to(torch.float64).numpy()


def _weights(pressure: Any) -> Tensor:
    w = as_vector(pressure, "pressure").detach().cpu()
    check_finite(w, "pressure")
    if bool((w < 0).any()) or not bool((w > 0).any()):
        raise ValueError(
            f"`pressure` must hold weights of at least 0, not all of them 0; found {float(w.min()):g} to "
            f"{float(w.max()):g}. Take those of `class_pressure`."
        )
    return w


def _lengths(radius: float, shape: str, values: Any, directions: int) -> NDArray[np.float64]:
    check_choice(shape, SHAPES, "shape")
    if not isinstance(radius, Real | Tensor) or not 0 < radius < math.inf:
        found = f"{radius:g}" if isinstance(radius, Real) else repr(radius)
        raise ValueError(
            f"`radius` must be a positive length; found {found}, which leaves no step to take. Set it from a "
            "loss energy with `energy_radius`."
        )
    if shape == "ball":
        return np.full(directions, float(radius))
    if values is None:
        raise ValueError('`shape="box"` scales each side by its eigenvalue: pass `values`, or take the ball.')
    lam = as_vector(values, "values").detach().cpu().numpy()
    if len(lam) != directions or not (np.isfinite(lam).all() and (lam > 0).all()):
        raise ValueError(
            f"`values` must hold a positive eigenvalue for each of the {directions} rows of `S`; found "
            f"{len(lam)}, the smallest {lam.min():g}. Drop pairs that are not positive, or take the ball."
        )
    return radius * np.sqrt(lam.min() / lam)


def _result(
    matrix: NDArray[np.float64],
    w: Tensor,
    floors: Tensor,
    lengths: NDArray[np.float64],
    changes: NDArray[np.float64],
    found: Solution,
    shape: str,
) -> Coefficients:
    alpha = torch.from_numpy(lengths * found.point)
    predicted = torch.from_numpy(matrix).T @ alpha
    size = np.linalg.norm(found.point) if shape == "ball" else np.abs(found.point).max()
    return Coefficients(
        alpha=alpha,
        predicted=predicted,
        gain=float(w @ predicted),
        floors=floors,
        active=found.active,
        at_limit=bool(size > 1 - 1e-9),
        feasible=math.isfinite(found.needed) and found.needed <= 1,
        converged=found.converged,
        gap=found.gap,
        status=_status(found, floors, changes, shape),
    )


def _status(found: Solution, floors: Tensor, changes: NDArray[np.float64], shape: str) -> str:
    guarded = int(floors.isfinite().sum())
    opening = f"All {guarded} classes are guarded. " if guarded == len(floors) else ""
    binding = ", ".join(str(j) for j in found.active)
    if found.needed > 1:
        rising = ", ".join(str(j) for j in (floors > 0).nonzero().flatten().tolist())
        way = (
            f"the radius would have to be {found.needed:.3g} times as long"
            if math.isfinite(found.needed)
            else "no step of any length does"
        )
        return (
            f"{opening}Infeasible, so the step is zero: classes {rising} have lost more than they may and no "
            f"step within the radius wins it back without breaking a guard; {way}."
        )
    if not found.moves:
        return (
            f"{opening}The step is zero: to first order no direction changes the weighted accuracy (S w = "
            "0). Take a longer probe (`eps`; or `radius`, where the probe is as long as the step), or other "
            "directions."
        )
    if not found.converged:
        return (
            f"{opening}Not certified: the solver stopped within {found.gap:.1g} of the optimum at best "
            f"({found.message}). Do not take this step."
        )
    if not found.point.any():
        pinned = is_pinned(changes, floors.numpy(), shape)
        why = (
            "alpha = 0 is the only feasible point" if pinned else "every feasible step lowers it or leaves it"
        )
        return (
            f"{opening}The step is zero: the guards of classes {binding} let no step raise the weighted "
            f"accuracy ({why}). Allow a larger `max_loss`, or stop."
        )
    bound = f"the guards of classes {binding} bind" if found.active else "no guard binds"
    return f"{opening}Optimal; {bound}."
