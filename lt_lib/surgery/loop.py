"""The loop of surgery: directions, sensitivities, coefficients, candidate, verdict, amplitude; and again."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lt_lib.curvature.guard import buffers_kept
from lt_lib.surgery.acceptance import spread
from lt_lib.surgery.amplitude import AmplitudeState, energy_radius
from lt_lib.surgery.checks import check_arguments, check_model
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages
from lt_lib.surgery.operation import Operation
from lt_lib.surgery.pressure import class_pressure
from lt_lib.surgery.resume import identity, load, save
from lt_lib.surgery.sensitivity import Sensitivity
from lt_lib.surgery.spikes import Found, Spikes
from lt_lib.surgery.state import SurgeryState, Weights, digest_of
from lt_lib.surgery.trace import Iteration
from lt_lib.surgery.turn import (
    Attempt,
    attempt,
    coefficients,
    control_of,
    entry,
    sensitivity,
)

_GAIN = 1e-4  # of sigma: less does not count for `patience`, as in the released gamma rule


@dataclass(frozen=True, eq=False)
class Step:
    """What a progress callback is given after each iteration."""

    iteration: Iteration
    done: int
    total: int  # at most
    state: Callable[[], SurgeryState]  # call it to save where surgery stands


Progress = Callable[[Step], None]


def operate(
    model: nn.Module,
    hessian: HessianImages,
    calibration: Calibration,
    config: SurgeryConfig,
    progress: Progress | None = None,
    state: SurgeryState | None = None,
) -> Operation:
    """Move the model's weights along Hessian spikes so that its class accuracies come closer together.

    MB1 to MB5 of arXiv 2605.07790, in place. Each iteration certifies the leading eigenpairs at the present
    weights, measures the sensitivities, solves for the coefficients, tries the step on the calibration images
    and keeps it or takes it back; then the weights are what they were, to the bit. At unchanged weights the
    eigenpairs are unchanged, so they are used again (the released code computes them anew, from another
    random start). Everything random follows from `config.seed`. Buffers, modes and gradients stay as they
    are; where anything is raised, the weights are those of the start.

    Args:
        model: maps images to logits (n, C); float32 or float64.
        hessian: training images.
        calibration: images set aside from training; no other image is looked at, test images least of all.
        config: settings, for example `SurgeryConfig.as_written(classes)`.
        progress: called with a `Step` after each iteration. Save `step.state()` and at most one iteration is
            lost to a kill.
        state: such a state: surgery goes on as if it had not stopped, to the same bits. The model then has
            the weights of the start, or those of that state.

    Returns:
        The trace, and the way back: `Operation.restore()`.

    Raises:
        ValueError: sets that overlap, a model in half precision or of another output than (n, C), accuracies
            that leave nothing to lift, sensitivities that are not finite, a state of another surgery, or a
            `progress` that changes the weights.
        RuntimeError: an eigenpair that is wanted is not certified.
    """
    check_arguments(model, hessian, calibration, config, state)
    return Loop(model, hessian, calibration, config, Spikes(config, calibration.classes), state).run(progress)


class Loop:
    """A running surgery. `operate` and `deflated_operate` differ in where directions come from.

    Args:
        model, hessian, calibration, config, state: as in `operate`.
        spikes: where directions come from, and in how many phases.
    """

    def __init__(
        self,
        model: nn.Module,
        hessian: HessianImages,
        calibration: Calibration,
        config: SurgeryConfig,
        spikes: Spikes,
        state: SurgeryState | None = None,
    ) -> None:
        self.weights = Weights(model, config.params)
        check_model(model, hessian, calibration)
        self.model, self.hessian, self.calibration = model, hessian, calibration
        self.config, self.spikes = config, spikes
        self.control = control_of(config)
        self.first = self.weights.copy()
        self.trace: list[Iteration] = []
        self.found: Found | None = None
        self.amplitude: AmplitudeState | None = None
        # where the loop stands; all of it in JSON types
        self.at: dict[str, Any] = {
            "phase": 0,
            "turn": 0,  # within the phase
            "found": None,  # index of the iteration whose directions still hold
            "scale": 1.0,  # of lengths, in this phase
            "largest": None,  # eigenvalue of the first phase, by which later ones are scaled
            "idle": 0,  # iterations without gain at the floor of the radius
            "stopped": "",
        }
        self.identity = identity(self)
        if state is not None:
            load(self, state)

    def run(self, progress: Progress | None) -> Operation:
        """Turn until done; on any exception put the first weights back."""
        if progress is not None and not callable(progress):
            raise ValueError(f"`progress` must be a function of a `Step`, or None; found {progress!r}.")
        try:
            while not self.at["stopped"]:
                made = len(self.trace)
                self._turn()
                if progress is not None and len(self.trace) > made:
                    total = self.config.iterations * self.spikes.phases
                    self._tell(progress, Step(self.trace[-1], len(self.trace), total, self.state))
        except BaseException:
            self.weights.put(self.first)
            raise
        return Operation(self.config, tuple(self.trace), self.at["stopped"], self.state(), self.weights)

    def state(self) -> SurgeryState:
        """Return where surgery stands, to be saved and given to `operate` again."""
        return save(self)

    def _tell(self, progress: Progress, step: Step) -> None:
        others = self.others()
        with buffers_kept(self.model):
            progress(step)
            if self.weights.digest() != self.trace[-1].weights or self.others() != others:
                raise ValueError(
                    "`progress` changed weights or buffers of `model`, so that nothing measured on them "
                    "holds any more. Let it work on a copy (`copy.deepcopy(model)`)."
                )

    def others(self) -> str:
        """Return a digest of what surgery does not move: frozen parameters and buffers."""
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return digest_of({n: t.detach() for n, t in tensors.items() if n not in self.weights.chosen})

    def _turn(self) -> None:
        began = time.perf_counter()
        reused = self.at["found"] is not None
        found = self._directions()
        radius = self._radius(found)
        eps = {"radius": radius, "length": self.config.eps * self.at["scale"], "nats": self.config.eps}
        measured = sensitivity(self.model, self.calibration, self.config, found, eps[self.config.eps_unit])
        pressure = self._pressure(measured)
        if pressure is None:
            return
        if self.amplitude is None:
            self.amplitude = self.control.begin(spread(measured.accuracy))
        baseline = self.trace[0].before if self.trace else measured.accuracy
        solved = coefficients(self.config, measured, pressure, radius, found.values, baseline)
        tried = attempt(self.model, self.calibration, self.config, found, solved, pressure, measured.accuracy)
        reason = self._settle(tried, found, solved.feasible)
        assert self.amplitude is not None
        record = entry(found, measured, pressure, radius, solved, tried) | {
            "index": len(self.trace),
            "phase": self.at["phase"],
            "reused": reused,
            "products": 0 if reused else found.products,
            "signal": self.amplitude.signal,
            "snr": self.amplitude.snr,
            "weights": self.weights.digest(),
        }
        self.trace.append(Iteration(**record, seconds=time.perf_counter() - began))
        self._advance(reason)

    def _directions(self) -> Found:
        if self.found is None:
            index = len(self.trace) if self.at["found"] is None else self.at["found"]
            self.found, self.at["found"] = self.spikes.find(self.model, self.hessian, index), index
        return self.found

    def _radius(self, found: Found) -> float:
        """Return the budget as a length: the rule's number times what its unit is worth here."""
        largest = float(found.values.max())
        if self.at["turn"] == 0 and self.spikes.scaled:
            self.at["largest"] = self.at["largest"] or largest
            self.at["scale"] = math.sqrt(self.at["largest"] / largest)
        nats = self.config.radius_unit == "nats"
        unit = energy_radius(0.5, largest) if nats else self.at["scale"]
        return unit * (self.control.start if self.amplitude is None else self.amplitude.radius)

    def _pressure(self, measured: Sensitivity) -> Tensor | None:
        try:
            return class_pressure(measured.accuracy, self.config.power, self.config.weights)
        except ValueError as error:  # the accuracies are sound, so nothing is left to lift
            if not self.trace:
                raise
            self.at["stopped"] = str(error)
            return None

    def _settle(self, tried: Attempt, found: Found, feasible: bool) -> str:
        """Move the weights if the step is kept, tell the amplitude rule, and say why to stop, if so."""
        verdict, before = tried.verdict, self.amplitude
        assert before is not None
        self.amplitude = self.control.update(before, verdict.sigma_after, verdict.accepted, verdict.drop)
        if tried.offset is None and feasible and self.config.eps_unit != "radius":
            return verdict.reason  # the best step at these sensitivities is none, whatever the radius
        if tried.offset is not None and verdict.accepted:
            self.weights.add(tried.offset)
            if self.config.recompute:
                self.spikes.moved(found)
                self.found = self.at["found"] = None
        elif self.config.amplitude != "snr" and self.amplitude.radius == before.radius:
            return f"{verdict.reason} The rule for the radius would try the same step again."
        gained = verdict.accepted and verdict.sigma_before - verdict.sigma_after >= _GAIN
        at_floor = self.amplitude.radius <= getattr(self.control, "floor", math.inf) * 1.01
        self.at["idle"] = self.at["idle"] + 1 if at_floor and not gained else 0
        if self.config.patience is not None and self.at["idle"] >= self.config.patience:
            return f"Sigma did not fall in {self.at['idle']} iterations at the smallest radius."
        return ""

    def _advance(self, reason: str) -> None:
        """Go on to the next turn, to the next phase, or stop."""
        self.at["turn"] += 1
        if not reason and self.at["turn"] < self.config.iterations:
            return
        if self.at["phase"] + 1 == self.spikes.phases:
            self.at["stopped"] = reason or f"All {self.config.iterations} iterations were made."
            return
        self.spikes.next_phase()
        self.at |= {"phase": self.at["phase"] + 1, "turn": 0, "idle": 0, "found": None}
        self.found = self.amplitude = None
