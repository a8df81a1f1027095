"""The parts of one iteration of surgery, as functions of the present weights."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.surgery.acceptance import Verdict, judge
from lt_lib.surgery.amplitude import FixedAmplitude, GammaDecay, SignalToNoise
from lt_lib.surgery.coefficients import Coefficients, solve_coefficients
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration
from lt_lib.surgery.movement import class_accuracy_at
from lt_lib.surgery.sensitivity import Sensitivity, measure_sensitivity
from lt_lib.surgery.soft import energy_coefficients, soft_sensitivity
from lt_lib.surgery.spikes import Found
from lt_lib.surgery.trace import cosine

Control = FixedAmplitude | GammaDecay | SignalToNoise


@dataclass(frozen=True, eq=False)
class Attempt:
    """A step that was tried on the calibration images."""

    factor: float  # share of the solver's step; 0: there was none
    offset: Tensor | None  # (P,), what would be added to the weights
    candidate: Tensor  # (C,) float64, accuracies there
    verdict: Verdict
    passes: int


def control_of(config: SurgeryConfig) -> Control:
    """Return the amplitude rule. With the unit "nats" it counts in sqrt(2 nats), else in lengths."""
    nats = config.radius_unit == "nats"
    start, floor = ((2 * x) ** 0.5 if nats else x for x in (config.radius, config.minimum))
    if config.amplitude == "fixed":
        return FixedAmplitude(start)
    if config.amplitude == "gamma":
        return GammaDecay(start, floor)
    return SignalToNoise(start, floor, config.iterations, config.betas, rolled_back=config.signal)


def sensitivity(
    model: nn.Module, data: Calibration, config: SurgeryConfig, found: Found, eps: float
) -> Sensitivity:
    """Measure the sensitivities with probes of `eps`, a length or (unit "nats") an energy."""
    if config.method == "soft":
        return soft_sensitivity(
            model,
            found.vectors,
            data.images,
            data.labels,
            data.classes,
            config.temperature,
            config.params,
            config.batch,
        )
    return measure_sensitivity(
        model,
        found.vectors,
        data.images,
        data.labels,
        eps,
        values=found.values if config.eps_unit == "nats" else None,
        classes=data.classes,
        params=config.params,
        method=config.method,
        batch=config.batch,
        audit=config.audit,
        seed=config.seed,
    )


def coefficients(
    config: SurgeryConfig,
    measured: Sensitivity,
    pressure: Tensor,
    radius: float,
    values: Tensor,
    baseline: Tensor,
) -> Coefficients:
    """Solve for the step."""
    guards: dict[str, Any] = {
        name: getattr(config, name) for name in ("strong", "max_loss", "others", "strong_by", "cumulative")
    }
    data = (measured.matrix, pressure, measured.accuracy)
    if config.shape == "energy":
        energy = float(values.max()) * radius**2 / 2
        return energy_coefficients(*data, energy, values, baseline=baseline, **guards)
    curvatures = values if config.shape == "box" else None
    return solve_coefficients(*data, radius, config.shape, curvatures, baseline=baseline, **guards)


def attempt(
    model: nn.Module,
    data: Calibration,
    config: SurgeryConfig,
    found: Found,
    solved: Coefficients,
    pressure: Tensor,
    before: Tensor,
) -> Attempt:
    """Try the step, and with `line_search` its halves: of those allowed, the one that lifts w^T a most."""
    if not solved.converged or not bool(solved.alpha.any()):
        none = replace(judge(before, before), accepted=False, reason=solved.status)
        return Attempt(0.0, None, before, none, 0)
    factors = [0.5**i for i in range(config.line_search + 1)]
    step = solved.alpha.to(found.vectors) @ found.vectors
    offsets = torch.stack([factor * step for factor in factors])
    reached = class_accuracy_at(
        model, offsets, data.images, data.labels, data.classes, config.params, config.batch
    )
    verdicts = [judge(before, a, config.rollback_sigma, config.rollback_drop) for a in reached]
    gains = [float(pressure @ (a - before)) for a in reached]
    allowed = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
    best = max(allowed, key=lambda i: gains[i], default=0)  # of equals the longest
    return Attempt(factors[best], offsets[best], reached[best], verdicts[best], len(factors))


def entry(
    found: Found, measured: Sensitivity, pressure: Tensor, radius: float, solved: Coefficients, tried: Attempt
) -> dict[str, Any]:
    """Return the fields of an `Iteration` that these make."""
    alpha, predicted = tried.factor * solved.alpha, tried.factor * solved.predicted
    return {
        "values": found.values,
        "residuals": found.residuals,
        "converged": found.converged,
        "dropped": found.dropped,
        "full_residuals": found.full_residuals,
        "sensitivity": measured.matrix,
        "errors": measured.errors,
        "fell_back": measured.fell_back,
        "eps": measured.eps,
        "before": measured.accuracy,
        "passes": measured.passes + tried.passes,
        "pressure": pressure,
        "radius": radius,
        "alpha": alpha,
        "predicted": predicted,
        "factor": tried.factor,
        "energy": float(found.values @ alpha.square()) / 2,
        "solved": solved.status,
        "candidate": tried.candidate,
        "cosine": cosine(predicted, tried.candidate - measured.accuracy),
        "accepted": tried.verdict.accepted,
        "reason": tried.verdict.reason,
    }
