"""A linear function maximised over a ball or a box cut by half-spaces, with a certificate.

`max g.u` subject to `||u|| <= 1` (ball) or `max_i |u_i| <= 1` (box), and `A u >= b`. For every `nu >= 0`,
`g.u <= (g + A^T nu).u - nu.b <= ||g + A^T nu||_* - nu.b` with the dual norm (Euclidean for the ball, sum of
absolute values for the box): an upper bound, which the right `nu` makes tight. Rows of `A` and `g` are
scaled to the size of the set, so that tolerances mean the same whatever the units.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize, nnls

Floats = NDArray[np.float64]
_GAP = 1e-6  # of the gain without guards, up to which an optimum counts as certified
_SLACK = 1e-7  # of a row's norm: a guard that is this near to its floor binds
_LIMIT = 1e-8  # violation of a scaled row that is put up with: rounding
_ZERO = 1e-9  # of the gain without guards: a gain not worth a step
_NOISE = 1e-7  # of its terms, below which an entry of S w is rounding (S may come from float32)
_EXACT = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}


@dataclass(frozen=True)
class Solution:
    """A point of the scaled set and what is known of it."""

    point: Floats  # (K,)
    active: tuple[int, ...]  # columns of `changes` whose floor binds
    gap: float  # upper bound on the gain missed, as a share of the gain without guards
    converged: bool
    needed: float  # size of the smallest feasible point: 0 where u = 0 is feasible, inf where none is
    moves: bool  # whether g is not zero
    message: str  # the solver's


def maximise(changes: Floats, weights: Floats, floors: Floats, shape: str) -> Solution:
    """Return the best scaled step: `u` for which `weights @ changes.T @ u` is largest and no floor is broken.

    Args:
        changes: (K, C) change of accuracy at the full length of each direction.
        weights: (C,) at least 0.
        floors: (C,) lowest change allowed, -inf for none; a positive one demands a rise.
        shape: "ball" or "box".
    """
    unit = float(np.abs(changes).max()) or 1.0
    scaled = changes / unit
    g, moves = _objective(scaled, weights, shape)
    rows, kept, impossible = _guards(scaled, floors / unit, shape)
    A, b = rows
    needed, start = (math.inf, np.zeros(len(g))) if impossible else _nearest(A, b, shape)
    if needed > 1:
        return Solution(np.zeros(len(g)), (), math.inf, False, needed, moves, "infeasible")
    point, message = _solve(g, A, b, shape, start) if moves else (start, "nothing to gain")
    gap, broken = _missed(g, A, b, shape, point), float((b - A @ point).max(initial=0))
    if g @ point <= _ZERO and needed == 0 and gap <= _GAP:
        point = np.zeros(len(g))
    active = tuple(kept[A @ point - b <= _SLACK].tolist())
    return Solution(point, active, gap, gap <= _GAP and broken <= _LIMIT, needed, moves, message)


def is_pinned(changes: Floats, floors: Floats, shape: str) -> bool:
    """Say whether u = 0 is the only point that meets all floors, where it does meet them.

    Near 0 only floors of exactly 0 matter. They pin it where they span the space and no u lifts one of their
    classes without lowering another.
    """
    A = changes.T[floors == 0]
    directions = changes.shape[0]
    if len(A) == 0 or np.linalg.matrix_rank(A) < directions:
        return False
    A = A / np.maximum(np.linalg.norm(A, axis=1, keepdims=True), np.finfo(float).tiny)
    found = linprog(-A.sum(0), A_ub=-A, b_ub=np.zeros(len(A)), bounds=(-1, 1), options=_EXACT)
    return bool(found.status == 0 and -found.fun <= _SLACK)


def _objective(scaled: Floats, weights: Floats, shape: str) -> tuple[Floats, bool]:
    """Return g, scaled so that the gain without guards is 1, and whether it is more than rounding."""
    w = weights / weights.max()
    g = scaled @ w
    g[np.abs(g) <= _NOISE * (np.abs(scaled) @ w)] = 0.0
    if not g.any():
        return g, False
    return g / (np.linalg.norm(g) if shape == "ball" else np.abs(g).sum()), True


def _guards(
    scaled: Floats, floors: Floats, shape: str
) -> tuple[tuple[Floats, Floats], NDArray[np.int64], bool]:
    """Return unit rows `A`, bounds `b` and columns of the guards that can bind; and whether one is hopeless.

    A hopeless guard demands a rise of a class that no direction moves.
    """
    norms = np.linalg.norm(scaled, axis=0)
    impossible = bool(((norms == 0) & (floors > 0)).any())
    some = np.nonzero((norms > 0) & np.isfinite(floors))[0]
    A = scaled.T[some] / norms[some, None]
    b = floors[some] / norms[some]
    reach = 1.0 if shape == "ball" else np.abs(A).sum(1)
    can_bind = b > -reach
    return (A[can_bind], b[can_bind]), some[can_bind], impossible


def _nearest(A: Floats, b: Floats, shape: str) -> tuple[float, Floats]:
    """Return the size of the smallest point with `A u >= b` (inf: there is none) and that point.

    Ball: least distance programming (Lawson and Hanson 1974, chapter 23) by non-negative least squares.
    """
    size = A.shape[1]
    top = float(b.max(initial=0))
    if top <= 0:
        return 0.0, np.zeros(size)
    b = b / top
    if shape == "box":
        stacked = np.block(
            [
                [-A, np.zeros((len(A), 1))],
                [np.eye(size), -np.ones((size, 1))],
                [-np.eye(size), -np.ones((size, 1))],
            ]
        )
        cost, right = np.append(np.zeros(size), 1.0), np.concatenate([-b, np.zeros(2 * size)])
        found = linprog(cost, A_ub=stacked, b_ub=right, bounds=(None, None), options=_EXACT)
        return (top * found.fun, top * found.x[:size]) if found.status == 0 else (math.inf, np.zeros(size))
    target = np.append(np.zeros(size), 1.0)
    stacked = np.vstack([A.T, b])
    rest = stacked @ nnls(stacked, target)[0] - target
    if np.linalg.norm(rest) <= 1e-9:
        return math.inf, np.zeros(size)
    point = -top * rest[:size] / rest[size]
    return float(np.linalg.norm(point)), point


def _solve(g: Floats, A: Floats, b: Floats, shape: str, start: Floats) -> tuple[Floats, str]:
    free = g if shape == "ball" else np.sign(g)
    if len(A) == 0 or (A @ free >= b).all():
        return free, "closed form"
    if shape == "box":
        found = linprog(-g, A_ub=-A, b_ub=-b, bounds=(-1, 1), options=_EXACT)
        return (start if found.x is None else np.clip(found.x, -1, 1)), str(found.message)
    # (1 - u.u) / 2: its multiplier is the Lagrangian's curvature, at most 1; SLSQP's first guess is 1
    found = minimize(
        lambda u: -(g @ u),
        start,
        jac=lambda u: -g,
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda u: A @ u - b, "jac": lambda u: A},
            {"type": "ineq", "fun": lambda u: 0.5 * (1 - u @ u), "jac": lambda u: -u[None]},
        ],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return found.x / max(1.0, float(np.linalg.norm(found.x))), str(found.message)


def _missed(g: Floats, A: Floats, b: Floats, shape: str, point: Floats) -> float:
    """Return the duality gap at `point`, with the multipliers that best balance the gradient there."""
    near = A @ point - b <= _SLACK
    if shape == "ball":
        sides = point[:, None] if np.linalg.norm(point) > 1 - _SLACK else np.zeros((len(g), 0))
    else:
        at_side = np.abs(point) > 1 - _SLACK
        sides = (np.eye(len(g)) * np.sign(point))[:, at_side]
    normals = np.hstack([-A[near].T, sides])
    nu = np.zeros(0)
    if normals.shape[1]:
        try:
            nu = nnls(normals, g)[0][: int(near.sum())]
        except RuntimeError:  # it may run out of iterations; any nu >= 0 gives a valid, looser bound
            nu = np.zeros(int(near.sum()))
    balance = g + A[near].T @ nu
    bound = np.linalg.norm(balance) if shape == "ball" else np.abs(balance).sum()
    return max(0.0, float(bound - nu @ b[near] - g @ point))
