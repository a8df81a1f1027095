"""Directions to move along, found at the model's present weights, each spike with its certificate."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_finite
from lt_lib.curvature import (
    Eigenpairs,
    GaussNewtonOperator,
    HessianOperator,
    Operator,
    UnconvergedWarning,
    lanczos,
)
from lt_lib.curvature.eigenpairs import rayleigh_quotient, weighted_sum
from lt_lib.curvature.ritz import floor_of
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import HessianImages
from lt_lib.surgery.directions import direction_rows

_EMPTY = torch.zeros(0, dtype=torch.float64)
_ORTHONORMAL = 1e-3  # largest entry of V V^T - I of given directions


@dataclass(frozen=True, eq=False)
class Found:
    """Unit directions and what is known of them."""

    vectors: Tensor  # (K, P) orthonormal rows
    values: Tensor  # (K,) float64: eigenvalues, of given directions Rayleigh quotients
    residuals: Tensor  # (K,) float64, relative
    converged: Tensor  # (K,) bool
    dropped: int  # pairs left out for want of a certificate or of a positive value
    products: int
    full_residuals: Tensor = _EMPTY  # (K,) float64: of deflated pairs, against the whole operator

    def start(self) -> Tensor:
        """Return the weighted sum of the rows (P,) that starts the next run: all that it takes from them."""
        return weighted_sum(self.vectors, self.values)


class Spikes:
    """The leading eigenpairs, or given directions, at each new point; started from those of the last point.

    A run starts from a sum of the earlier vectors, so one vector (P,) is all that has to be kept to
    repeat it to the bit.

    Args:
        config: which operator, how many pairs, how exact.
        classes: C.
    """

    phases = 1
    scaled = False  # whether lengths of later phases are scaled to the first phase's energy

    def __init__(self, config: SurgeryConfig, classes: int) -> None:
        self.config, self.count = config, config.spikes or classes - 1
        self._start: Tensor | None = None

    def find(self, model: nn.Module, hessian: HessianImages, index: int) -> Found:
        """Return the directions at the model's weights; `index` is that of the iteration.

        Raises:
            RuntimeError: a wanted pair is not certified, and `unconverged` is "error".
            ValueError: given directions do not fit.
        """
        operator = operator_of(model, hessian, self.config)
        if self.config.kind == "spikes":
            return certified_pairs(operator, self.count, self.config, self._start)
        rows: Any = self.config.directions
        if isinstance(rows, str):
            return self._by_kind(operator, rows, model, hessian, index)
        if callable(rows):
            rows = rows(model, hessian, self.count, self.config.seed + index)
        return _given(operator, rows)

    def _by_kind(
        self, operator: Any, kind: str, model: nn.Module, hessian: HessianImages, index: int
    ) -> Found:
        solver: dict[str, Any] = {"tol": self.config.tol, "max_products": self.config.max_products}
        seed, params = self.config.seed + index, self.config.params
        rows, spent = direction_rows(kind, model, hessian, self.count, seed, params=params, **solver)
        found = _given(operator, rows)
        return replace(found, products=found.products + spent)

    def moved(self, found: Found) -> None:
        """Take note that the weights moved on from where `found` was found."""
        self._start = found.start() if self.config.kind == "spikes" else None

    def settings(self) -> dict[str, Any]:
        """Return the settings beside `config`, in JSON types."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return what `load` needs."""
        return {} if self._start is None else {"start": self._start}

    def load(self, tensors: Mapping[str, Tensor], phase: int) -> None:
        """Go on from what `tensors()` returned in that phase."""
        self._start = tensors.get("start")

    def next_phase(self) -> None:
        """Turn to the next group of directions."""
        raise NotImplementedError


def operator_of(model: nn.Module, hessian: HessianImages, config: SurgeryConfig) -> Any:
    """Return the operator of the mean cross-entropy over the Hessian images, at the present weights."""
    kind = HessianOperator if config.operator == "hessian" else GaussNewtonOperator
    return kind(model, hessian.images, hessian.labels, params=config.params, micro_batch=config.micro_batch)


def certified_pairs(operator: Operator, count: int, config: SurgeryConfig, start: Tensor | None) -> Found:
    """Return the `count` leading eigenpairs, each certified and positive beyond rounding.

    Raises:
        RuntimeError: some are not and `unconverged` is "error", or none is; they are named.
        ValueError: more pairs than parameters.
    """
    if count > operator.size:
        raise ValueError(
            f"`spikes` must be at most {operator.size}, the number of chosen parameters; found {count}."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)  # said below, with what follows from it
        pairs = lanczos(
            operator,
            count,
            tol=config.tol,
            seed=config.seed,
            start=start,
            max_products=config.max_products,
            max_memory=config.max_memory,
        )
    rounding = floor_of(pairs.vectors.dtype) * float(pairs.values.abs().max())
    good = pairs.converged & (pairs.values > rounding)  # the sign of anything nearer zero is chance
    if not bool(good.all()):
        said = _complaint(pairs, good)
        if config.unconverged == "error" or not bool(good.any()):
            raise RuntimeError(f"{said} Raise `max_products`, or ask for fewer `spikes`.")
        warnings.warn(f"{said} The others are used.", UnconvergedWarning, stacklevel=4)
    return Found(
        vectors=pairs.vectors if bool(good.all()) else pairs.vectors[good.to(pairs.vectors.device)],
        values=pairs.values[good],
        residuals=pairs.residuals[good],
        converged=pairs.converged[good],
        dropped=int((~good).sum()),
        products=pairs.matvecs,
    )


def _complaint(pairs: Eigenpairs, good: Tensor) -> str:
    bad = (~good).nonzero().flatten().tolist()
    told = "; ".join(
        f"pair {i} has value {float(pairs.values[i]):.4g} with residual {float(pairs.residuals[i]):.1e}"
        for i in bad[:5]
    )
    return (
        f"{len(good)} spikes are wanted, but only {int(good.sum())} eigenpairs are positive and certified to "
        f"tol {pairs.tol:g} after {pairs.matvecs} products: {told}{' ...' if len(bad) > 5 else ''} (from 0)."
    )


def _given(operator: Any, rows: Tensor) -> Found:
    if not isinstance(rows, Tensor) or rows.ndim != 2 or rows.shape[1] != operator.size or len(rows) == 0:
        found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"`directions` must be rows (K, {operator.size}); found {found}.")
    rows = rows.detach().to(device=operator.device, dtype=operator.dtype)
    check_finite(rows, "directions")
    apart = float((rows.double() @ rows.double().T - torch.eye(len(rows)).to(rows.device)).abs().max())
    if apart > _ORTHONORMAL:
        raise ValueError(
            f"`directions` must be orthonormal rows, so that coefficients are lengths; found inner products "
            f"{apart:.1e} apart from that. Pass them through `lt_lib.curvature.orthonormal_rows`."
        )
    quotients = [rayleigh_quotient(row, operator.matvec(row)) for row in rows]
    values = torch.tensor([value for value, _ in quotients], dtype=torch.float64)
    errors = torch.tensor([error for _, error in quotients], dtype=torch.float64)
    residuals = errors / values.abs().clamp(min=torch.finfo(torch.float64).tiny)
    return Found(rows, values, residuals, residuals <= 1e-3, 0, len(rows))
