"""What happened in each iteration of surgery, as frozen records that JSON can hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from lt_lib.surgery.acceptance import spread


@dataclass(frozen=True, eq=False)
class Iteration:
    """One turn of the loop. Accuracies are shares of the calibration images of a class.

    Two records are equal when their entries are, NaN included, the clock left out.
    """

    index: int  # from 0, over all phases
    phase: int  # 0 in plain surgery
    values: Tensor  # (K,) float64: eigenvalues; Rayleigh quotients of given directions
    residuals: Tensor  # (K,) float64: certificates, ||H q - value q|| / |value|
    converged: Tensor  # (K,) bool
    dropped: int  # pairs that were left out because nothing certifies them, or their value is not positive
    reused: bool  # eigenpairs of the iteration before, whose weights were the same (or recompute is off)
    products: int  # operator products spent in this iteration
    sensitivity: Tensor  # (K, C) float64, per unit length
    errors: Tensor  # (K, C) float64, standard errors of the same
    fell_back: bool  # a fast method of measuring disagreed with the exact one and was dropped
    passes: float  # evaluation sweeps spent in this iteration
    pressure: Tensor  # (C,) float64, weights of the classes
    radius: float  # budget alpha_max, a length
    eps: Tensor  # (K,) float64, lengths of the probes
    alpha: Tensor  # (K,) float64, coefficients of the step (zero: there was none)
    factor: float  # share of the solver's step that was taken, see `line_search`
    energy: float  # sum of value * alpha^2 / 2: nats of the quadratic model, along eigenvectors
    solved: str  # how the solver ended, a sentence
    before: Tensor  # (C,) float64, accuracies at the start of the iteration
    predicted: Tensor  # (C,) float64, changes that the sensitivities predict for the step
    candidate: Tensor  # (C,) float64, accuracies at the candidate
    cosine: float  # of predicted and measured changes; NaN where one of them is zero
    accepted: bool
    reason: str  # a sentence
    signal: float  # what the amplitude rule was told
    snr: float  # NaN for rules without one
    weights: str  # hex SHA-256 of the chosen parameters at the end of the iteration
    full_residuals: Tensor  # (K,) float64: of a deflated pair, against the whole operator; else empty
    seconds: float

    @property
    def after(self) -> Tensor:
        """Accuracies of the classes at the end of the iteration, (C,)."""
        return self.candidate if self.accepted else self.before

    def summary(self) -> dict[str, float | int | bool | str]:
        """Return the iteration as one row of a table: sigma, balanced and worst accuracy before and after."""
        row: dict[str, float | int | bool | str] = {"iteration": self.index, "phase": self.phase}
        for name, accuracies in (("before", self.before), ("after", self.after)):
            row |= {
                f"sigma_{name}": spread(accuracies),
                f"balanced_{name}": float(accuracies.mean()),
                f"worst_{name}": float(accuracies.min()),
            }
        largest = float(self.values.max()) if len(self.values) else math.nan
        return row | {
            "largest_value": largest,
            "worst_residual": float(self.residuals.max()) if len(self.residuals) else math.nan,
            "radius": self.radius,
            "length": float(self.alpha.norm()),
            "energy": self.energy,
            "cosine": self.cosine,
            "accepted": self.accepted,
            "products": self.products,
            "passes": self.passes,
            "seconds": self.seconds,
            "reason": self.reason,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the record in JSON types: tensors as lists, NaN as None; see `plain`."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Iteration":
        """Return the record that `to_dict` gave."""
        return cls(**{field.name: typed(field.type, record[field.name], field.name) for field in fields(cls)})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Iteration):
            return NotImplemented
        mine, others = self.to_dict(), other.to_dict()
        return all(mine[name] == others[name] for name in mine if name != "seconds")

    __hash__ = None  # type: ignore[assignment]


def columns(trace: Sequence[Iteration]) -> dict[str, list[Any]]:
    """Return the table of a trace as columns; see `Iteration.summary`."""
    rows = [iteration.summary() for iteration in trace]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors of float64; NaN if one is zero."""
    lengths = float(a.norm()) * float(b.norm())
    return float(a @ b) / lengths if lengths > 0 else math.nan


def plain(value: Any) -> Any:
    """Return a value in JSON types: tensors as lists, NaN as None, infinities as "inf" and "-inf"."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def typed(kind: Any, value: Any, name: str) -> Any:
    """Return what `plain` made of a field of this type."""
    if kind is float:
        return math.nan if value is None else float(value)
    if kind is not Tensor:
        return value
    if name == "converged":
        return torch.tensor(value, dtype=torch.bool)
    return torch.tensor(_filled(value), dtype=torch.float64)


def _filled(value: Any) -> Any:
    if isinstance(value, list):
        return [_filled(entry) for entry in value]
    return math.nan if value is None else float(value)
