"""Rayleigh-Ritz on a projected matrix: which pairs are wanted, how far from eigenpairs, how sure of all."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

WHICH = ("LA", "SA", "LM")
FLOOR = 50  # in machine epsilons of the operator's norm: below lies rounding of the products
FLOOR_DOUBLE = 1e-10  # the same in float64, where rounding of the operator's own entries is what counts


class Ritz(NamedTuple):
    """Ritz pairs of a basis of m rows, the wanted ones first."""

    values: Tensor  # (m,) float64
    weights: Tensor  # (m, m) float64, columns: coefficients in the basis
    errors: Tensor  # (m,) absolute residual norms
    resolution: float  # residual at which a pair is exact up to rounding

    def relative(self, tol: float) -> Tensor:
        """Return residuals relative to |value|, (m,).

        A value that is zero up to rounding has no relative error: from `resolution / tol` downwards
        residuals are taken relative to that, so that `<= tol` then reads "exact up to rounding".
        """
        return self.errors / self.values.abs().clamp(min=max(self.resolution / tol, math.ulp(0.0)))


def floor_of(dtype: torch.dtype) -> float:
    """Return the part of the operator's norm below which a remainder is rounding."""
    return max(FLOOR * torch.finfo(dtype).eps, FLOOR_DOUBLE)


def rayleigh_ritz(t: Tensor, beta: float, outside: Tensor, which: str, floor: float) -> Ritz:
    """Return the Ritz pairs of A Q = Q T + beta q e_m^T + R, where row j of R has norm `outside[j]`.

    Args:
        t: T, (m, m) float64.
        beta: length of the part of A q_m outside the basis.
        outside: (m,) what else is known to lie outside: residuals of locked vectors, rounding of stored rows.
        which: "LA", "SA" or "LM": order of the pairs.
        floor: part of the operator's norm that is rounding, from `floor_of`.
    """
    values, weights = torch.linalg.eigh(t)
    order = ranking(values, which)
    values, weights = values[order], weights[:, order]
    errors = beta * weights[-1].abs() + outside @ weights.abs()
    scale = max(float(values.abs().max()), beta)
    return Ritz(values, weights, errors, floor * scale)


def ranking(values: Tensor, which: str) -> Tensor:
    """Return the order of values: descending ("LA"), ascending ("SA"), descending magnitude ("LM")."""
    key = {"LA": -values, "SA": values, "LM": -values.abs()}[which]
    return torch.argsort(key, stable=True)


def miss_probability(size: int, steps: int, kth: float, best: float, spread: float) -> float:
    r"""Bound the chance that a random start leaves an eigenvalue at or beyond `kth` unseen.

    If one existed, Lanczos would by now be within a relative error :math:`\varepsilon` of it but for a chance
    of at most :math:`1.648\sqrt P e^{-\sqrt\varepsilon(2m-1)}` (Kuczynski and Wozniakowski 1992, theorem
    4.2); here :math:`\varepsilon` is the distance of the best Ritz value of the fresh start from `kth`,
    relative to the spread of the spectrum.
    """
    distance = min(max((kth - best) / spread, 0.0), 1.0) if spread > 0 else 0.0
    return min(1.0, 1.648 * math.sqrt(size) * math.exp(-math.sqrt(distance) * (2 * steps - 1)))


def fresh_miss_probability(ritz: Ritz, t: Tensor, fresh: int, size: int, k: int, which: str) -> float:
    """Return `miss_probability` for the rows of T from `fresh` on, which a random start spans."""
    found = torch.linalg.eigvalsh(t[fresh:, fresh:])
    low, high, kth = float(found[0]), float(found[-1]), float(ritz.values[k - 1])
    if which == "LM":
        kth = abs(kth)
        best = max(abs(low), abs(high))
        return miss_probability(size, len(found), kth, best, kth + min(best, kth))
    if which == "SA":
        low, high, kth = -high, -low, -kth
    return miss_probability(size, len(found), kth, high, kth - low)


def angle_bounds(values: Tensor, errors: Tensor, others: Tensor) -> Tensor:
    r"""Bound the angle between each vector and the eigenvector it stands for: residual / gap (Davis-Kahan).

    The gap of value i is its distance to the other Ritz values, less its own residual. It is an estimate as
    far as Ritz values stand for the rest of the spectrum; equal values share an eigenspace, and the angle of
    a single vector in it means nothing (pi / 2 is returned).

    Args:
        values: (k,) of the pairs.
        errors: (k,) absolute residuals.
        others: values of further Ritz pairs.
    """
    rest = torch.cat([values, others])
    gaps = (values[:, None] - rest[None, :]).abs()
    gaps[torch.arange(len(values)), torch.arange(len(values))] = math.inf
    gap = (gaps.min(1).values - errors).clamp(min=0)
    ratio = torch.where(errors < gap, errors / gap.clamp(min=math.ulp(0.0)), torch.ones_like(gap))
    return torch.asin(ratio.clamp(max=1))
