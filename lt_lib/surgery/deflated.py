"""Sequential deflated surgery (MB7): one group of spikes after the other, for many classes and little memory.

Deflation takes the earlier groups out of the operator, so that a run finds the next. What is taken out must
be an invariant subspace of the operator at the *present* weights; only then are the vectors of a later phase
eigenvectors of the Hessian, those after the earlier groups. The paper keeps each phase's vectors from its
first iteration, while the weights move on (PB19): this is `stale=True`. By default every group is certified
anew at each new point, one after the other, each from where it was last found; one group and the compact
basis are in memory at a time. Joint surgery is the same loop with one group: one phase is `operate`, to the
bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice, check_whole
from lt_lib.curvature.eigenpairs import rayleigh_quotient
from lt_lib.surgery.checks import check_arguments
from lt_lib.surgery.compact import CompactBasis, OffSpan, check_dtype
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages
from lt_lib.surgery.loop import Loop, Progress
from lt_lib.surgery.operation import Operation
from lt_lib.surgery.spikes import Found, Spikes, certified_pairs, operator_of
from lt_lib.surgery.state import SurgeryState
from lt_lib.surgery.trace import Iteration

SCALES = ("energy", "none")


@dataclass(frozen=True, eq=False)
class DeflatedOperation(Operation):
    """A finished surgery in phases."""

    phases: int
    per_phase: int

    def of_phase(self, phase: int) -> tuple[Iteration, ...]:
        """Return the iterations of one phase, from 0."""
        return tuple(iteration for iteration in self.trace if iteration.phase == phase)

    @property
    def directions(self) -> int:
        """Number of spikes that were used, over all phases."""
        used = {iteration.phase: len(iteration.values) for iteration in self.trace}
        return sum(used.values())


def deflated_operate(
    model: nn.Module,
    hessian: HessianImages,
    calibration: Calibration,
    config: SurgeryConfig,
    phases: int,
    per_phase: int,
    basis_dtype: torch.dtype = torch.float16,
    stale: bool = False,
    scale: str = "energy",
    progress: Progress | None = None,
    state: SurgeryState | None = None,
) -> DeflatedOperation:
    """Do surgery along spikes 1..m, then m+1..2m, and so on, with `config.iterations` iterations a phase.

    Args:
        model: as in `operate`.
        hessian: likewise.
        calibration: likewise.
        config: likewise; its `spikes` are not used.
        phases: number of groups. C - 1 spikes in all need `ceil((C - 1) / per_phase)`.
        per_phase: spikes m of a group.
        basis_dtype: of the stored vectors of earlier groups.
        stale: deflate the vectors of each earlier phase's first iteration, as the paper does, instead of the
            earlier eigenvectors at the present weights. Cheaper, but the vectors are then not eigenvectors of
            the Hessian: `Iteration.full_residuals` tells how far off they are.
        scale: "energy": lengths of a phase are sqrt(lambda_max of the first phase / lambda_max of this one)
            times those of the first (the paper's rule, at each phase's first iteration; probes of the unit
            "length" too); "none". The unit "nats" of the radius keeps its energy by itself.
        progress: as in `operate`.
        state: likewise.

    Raises:
        ValueError: as `operate`; or `phases`, `per_phase`, `basis_dtype` or `scale` is not allowed, or the
            configuration gives directions of its own.
        RuntimeError: an eigenpair that is wanted is not certified.
    """
    check_arguments(model, hessian, calibration, config, state)
    check_choice(scale, SCALES, "scale")
    for name, value in (("phases", phases), ("per_phase", per_phase)):
        check_whole(value, name)
    check_dtype(basis_dtype)
    if config.kind != "spikes":
        raise ValueError("Deflation is for spikes: leave `directions` of the configuration alone.")
    sizes = _sizes(phases, per_phase, calibration.classes)
    groups = DeflatedSpikes(replace(config, spikes=per_phase), sizes, basis_dtype, stale, scale)
    done = Loop(model, hessian, calibration, groups.config, groups, state).run(progress)
    return DeflatedOperation(
        done.config, done.trace, done.stopped, done.last, done.weights, phases=phases, per_phase=per_phase
    )


class DeflatedSpikes(Spikes):
    """The eigenpairs of the present phase's group, off those of the earlier groups.

    Args:
        config: with `spikes` for one group.
        sizes: spikes of each group.
        dtype: of the compact basis.
        stale: whether earlier groups stay as they were found in their phase's first iteration.
        scale: "energy" or "none".
    """

    def __init__(
        self, config: SurgeryConfig, sizes: list[int], dtype: torch.dtype, stale: bool, scale: str
    ) -> None:
        super().__init__(config, sizes[0] + 1)
        self.sizes, self.phases, self.dtype, self.stale = sizes, len(sizes), dtype, stale
        self.scaled = scale == "energy" and config.radius_unit == "length"
        self.phase = 0
        self._starts: dict[int, Tensor] = {}  # group -> sum of its vectors at the last point
        self._basis: CompactBasis | None = None  # of the earlier phases; only where it is stale
        self._stored: Tensor | None = None  # the same as it is saved, until it is needed
        self._first: Tensor | None = None  # this phase's first vectors; only where they will be stale
        self._trail: dict[int, Tensor] = {}  # starts for the next point, once the weights have moved

    def find(self, model: nn.Module, hessian: HessianImages, index: int) -> Found:
        """Return the phase's group of eigenpairs at the model's weights, off the earlier groups."""
        operator = operator_of(model, hessian, self.config)
        if self.phase == 0:
            found = self._group(operator, 0)
            self._keep_first(operator, found)
            return found
        basis, products = self._earlier(operator)
        found = self._group(OffSpan(operator, basis), self.phase)
        self._keep_first(operator, found)
        residuals = torch.empty_like(found.values)
        for i, row in enumerate(found.vectors):
            value, error = rayleigh_quotient(row, operator.matvec(row))
            residuals[i] = error / abs(value)
        spent = found.products + products + len(residuals)
        return replace(found, products=spent, full_residuals=residuals)

    def moved(self, found: Found) -> None:
        """Take note that the weights moved on from where `found` was found."""
        self._trail[self.phase] = found.start()
        self._starts |= self._trail
        self._trail = {}

    def next_phase(self) -> None:
        """Turn to the next group of directions."""
        if self.stale and self._first is not None:
            if self._basis is None:
                self._stored = self._first
            else:
                self._basis.restore(self._first)
            self._first = None
        self.phase += 1

    def settings(self) -> dict[str, Any]:
        """Return the settings beside `config`, in JSON types."""
        return {
            "sizes": self.sizes,
            "basis_dtype": str(self.dtype),
            "stale": self.stale,
            "scaled": self.scaled,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return what `load` needs."""
        found = {f"start.{group}": start for group, start in self._starts.items()}
        stored = self._stored if self._basis is None else self._basis.tensor()
        if stored is not None:
            found["basis"] = stored
        if self._first is not None:
            found["first"] = self._first
        return found

    def load(self, tensors: Mapping[str, Tensor], phase: int) -> None:
        """Go on from what `tensors()` returned in that phase."""
        self.phase = phase
        self._starts = {
            int(name.removeprefix("start.")): value
            for name, value in tensors.items()
            if name.startswith("start.")
        }
        self._stored, self._basis = tensors.get("basis"), None
        self._first = tensors.get("first")

    def _earlier(self, operator: Any) -> tuple[CompactBasis, int]:
        """Return the basis of the earlier groups, and the products that certifying them anew took."""
        if self._basis is not None:
            return self._basis, 0
        basis = self._empty(operator)
        if self._stored is not None:
            basis.restore(self._stored)
            self._basis, self._stored = basis, None
            return basis, 0
        products = 0
        for group in range(self.phase):
            found = self._group(OffSpan(operator, basis) if group else operator, group)
            self._trail[group] = found.start()
            basis.append(found.vectors)
            products += found.products
        return basis, products

    def _group(self, operator: Any, group: int) -> Found:
        return certified_pairs(operator, self.sizes[group], self.config, self._starts.get(group))

    def _keep_first(self, operator: Any, found: Found) -> None:
        if self.stale and self._first is None and self.phase + 1 < self.phases:
            basis = self._empty(operator)
            basis.append(found.vectors)
            self._first = basis.tensor()

    def _empty(self, operator: Any) -> CompactBasis:
        return CompactBasis(operator.size, self.dtype, operator.device, operator.dtype)


def _sizes(phases: int, per_phase: int, classes: int) -> list[int]:
    """Return the spikes of each phase; the last of several ends with spike C - 1."""
    most = max(classes - 1, per_phase)
    if (phases - 1) * per_phase >= most:
        raise ValueError(
            f"{phases} phases of {per_phase} spikes go beyond the {classes - 1} spikes of {classes} classes: "
            f"{-(-most // per_phase)} phases reach all of them."
        )
    return [min(per_phase, most - phase * per_phase) for phase in range(phases)]
