"""Eigenpairs with what certifies them."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lt_lib.curvature.operators import Operator, norm, norms
from lt_lib.curvature.ritz import Ritz, angle_bounds, floor_of


class UnconvergedWarning(UserWarning):
    """A returned pair is not an eigenpair to the tolerance that was asked for."""


@dataclass(frozen=True)
class Eigenpairs:
    """Leading eigenpairs of a symmetric operator, in the order of `which`.

    A residual certifies that an eigenvalue lies within `residual * |value|` of the value, not that it is the
    k-th: see `complete`.
    """

    values: Tensor  # (k,) float64, CPU
    vectors: Tensor  # (k, P) orthonormal rows
    residuals: Tensor  # (k,) float64, ||A q - value q|| / |value|
    converged: Tensor  # (k,) bool: residual <= tol
    angles: Tensor  # (k,) float64, radians: bound residual / gap on the angle to the eigenvector
    matvecs: int  # operator products spent, those of `verify` and of an interrupted run included
    tol: float
    which: str
    verified: bool  # residuals come from products with the vectors themselves, not from the recurrence
    complete: bool | None  # a fresh start found nothing before the k-th value; None: no such check was made
    miss_probability: float | None  # that check's bound on the chance that there is something all the same
    rounded: bool = False  # the basis was stored in fewer bits than the operator's

    def require_converged(self) -> "Eigenpairs":
        """Return self.

        Raises:
            RuntimeError: a pair did not converge; all such are named.
        """
        if not bool(self.converged.all()):
            raise RuntimeError(self.complaint())
        return self

    def complaint(self) -> str:
        """Say which pairs did not converge, and the way out."""
        bad = (~self.converged).nonzero().flatten().tolist()
        worst = max(bad, key=lambda i: float(self.residuals[i]))
        way_out = "Raise `max_products`, or ask for a smaller `k`"
        if self.rounded:  # more products do not undo that
            way_out = "Raise `tol`, or keep the basis unrounded (`basis_dtype=None`)"
        return (
            f"{'Pair' if len(bad) == 1 else 'Pairs'} {', '.join(map(str, bad))} (from 0) did not converge to "
            f"tol {self.tol:g} in {self.matvecs} products: pair {worst} has value "
            f"{float(self.values[worst]):.6g} with residual {float(self.residuals[worst]):.1e}. "
            f"{way_out}."
        )


def warn_unconverged(pairs: Eigenpairs) -> Eigenpairs:
    """Return the pairs, after a warning if one did not converge."""
    if not bool(pairs.converged.all()):
        warnings.warn(pairs.complaint(), UnconvergedWarning, stacklevel=3)
    return pairs


def verify(operator: Operator, pairs: Eigenpairs) -> Eigenpairs:
    """Return the pairs with values and residuals from one further product a pair.

    Values become Rayleigh quotients. They may be judged by another operator than the one they came from, for
    one on another batch or by another product method.

    Raises:
        ValueError: sizes differ.
    """
    if pairs.vectors.shape[1] != operator.size:
        raise ValueError(
            f"`pairs` have vectors of size {pairs.vectors.shape[1]}, `operator` has {operator.size}."
        )
    values, errors = torch.zeros_like(pairs.values), torch.zeros_like(pairs.residuals)
    for i, vector in enumerate(pairs.vectors):
        q = vector.to(device=operator.device, dtype=operator.dtype)
        image = operator.matvec(q)
        values[i], errors[i] = rayleigh_quotient(q, image)
    return judged(operator, pairs, values, errors, len(values))


def rayleigh_quotient(q: Tensor, image: Tensor) -> tuple[float, float]:
    """Return the Rayleigh quotient of q and the norm of its residual, given A q."""
    value = float(torch.dot(q.double(), image.double())) / norm(q) ** 2
    return value, norm(image - value * q)


def judged(
    operator: Operator, pairs: Eigenpairs, values: Tensor, errors: Tensor, products: int
) -> Eigenpairs:
    """Return the pairs with new values and absolute residuals (k,) from `products` further products."""
    ritz = Ritz(values, torch.empty(0), errors, floor_of(operator.dtype) * float(values.abs().max()))
    residuals = ritz.relative(pairs.tol)
    return replace(
        pairs,
        values=values,
        residuals=residuals,
        converged=residuals <= pairs.tol,
        angles=torch.maximum(pairs.angles, angle_bounds(values, errors, values[:0])),
        matvecs=pairs.matvecs + products,
        verified=True,
    )


def weighted_sum(vectors: Tensor, values: Tensor) -> Tensor:
    """Return the sum (P,) of eigenvectors (j, P) that starts a run well after a step of the weights.

    Each is weighted by 1 / |value|, up to 100 times the first's weight: the last pairs are those that a run
    waits for, so they get the head start.
    """
    sizes = values.detach().abs()
    weights = (sizes.max() / sizes).clamp(max=100).nan_to_num(nan=1.0)
    return weights.to(vectors) @ vectors


def as_start(start: Any, size: int) -> Tensor:
    """Return a start vector (P,): one, the sum of rows (j, P) made unit, or the `weighted_sum` of pairs.

    Raises:
        ValueError: another shape, not finite, zero, or rows whose sum is zero.
    """
    rows = start.vectors if isinstance(start, Eigenpairs) else start
    if not isinstance(rows, Tensor) or rows.ndim not in (1, 2) or rows.shape[-1] != size or rows.numel() == 0:
        found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(
            f"`start` must be a vector ({size},), rows (j, {size}) or earlier Eigenpairs; found {found}."
        )
    rows = rows.detach().reshape(-1, size)
    rows = rows if rows.is_floating_point() else rows.double()
    lengths = norms(rows)
    if not bool(torch.isfinite(lengths).all()) or bool((lengths < torch.finfo(rows.dtype).tiny).any()):
        raise ValueError("`start` must be finite and not zero. None starts from a random vector.")
    if isinstance(start, Eigenpairs) and len(start.values) != len(rows):
        raise ValueError(f"`start` must have a value a vector; found {len(start.values)} for {len(rows)}.")
    pairs = isinstance(start, Eigenpairs)
    total = weighted_sum(rows, start.values) if pairs else (1 / lengths).to(rows) @ rows
    if norm(total) < 1e-6:
        raise ValueError("The rows of `start` cancel: their sum is zero. Leave out those that repeat others.")
    return total
