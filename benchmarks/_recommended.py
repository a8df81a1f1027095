"""What the search for a recommended surgery is made of: its grid, its rule, and how one fit is measured.

Grid and rule were committed before the first of their results. Nothing here sees a test image that is not
handed in by the report.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.curvature import HessianOperator, lanczos
from lt_lib.metrics import paired_comparison
from lt_lib.posthoc.evaluation import evaluation
from lt_lib.surgery import Calibration, HessianImages, Step, SurgeryConfig, energy_radius, operate

CLASSES = 10
WRITTEN, SEARCHED, RELEASED = "as written, 0.01 nats", "as written, searched", "as released, 0.12 nats"
SOFT, SOFT_LONG = "differentiable, 0.32 nats", "differentiable, 1.28 nats"


def settings(path: str, iterations: int, largest: float, **same: Any) -> SurgeryConfig:
    """Return the settings of a path; `largest` is the first eigenvalue of the network as trained.

    Radii are energies along the first spike: 0.01 nats is the radius sqrt(0.02 / lambda_1) of the first
    trials, 0.12 nats what the paper's length of 0.02 costs at its first eigenvalue of 600. The released probe
    is half the first radius, as a length. "Searched" is the paper's text with a line search from 0.32 nats
    and steps bounded by energy in every direction, as the differentiable variant has them.
    """
    nats: dict[str, Any] = {"radius_unit": "nats", **same}
    if path == WRITTEN:
        return SurgeryConfig.as_written(CLASSES, iterations, radius=0.01, minimum=0.001, **nats)
    if path == SEARCHED:
        searched = {
            "shape": "energy",
            "amplitude": "fixed",
            "radius": 0.32,
            "minimum": 0.01,
            "line_search": 5,
        }
        return SurgeryConfig.as_written(CLASSES, iterations, **nats | searched)
    if path == RELEASED:
        probe = energy_radius(0.12, largest) / 2
        radii = {"radius": 0.12, "minimum": 0.012}
        return SurgeryConfig.as_released(CLASSES, iterations=iterations, eps=probe, **nats | radii)
    return SurgeryConfig.differentiable(
        CLASSES, iterations, radius={SOFT: 0.32, SOFT_LONG: 1.28}[path], **same
    )


# eight configurations: a path, and after how many of its iterations one stops
GRID = {
    f"{path}, {iterations} iterations": (path, iterations)
    for path, marks in {
        WRITTEN: (5,),
        SEARCHED: (3,),
        RELEASED: (3, 5),
        SOFT: (2, 4),
        SOFT_LONG: (2, 4),
    }.items()
    for iterations in marks
}
MARKS = {path: sorted(n for p, n in GRID.values() if p == path) for path, _ in GRID.values()}

Scores = Mapping[str, Sequence[Mapping[str, float]]]  # a configuration's numbers, an entry a network


def choose(scores: Scores) -> tuple[str, list[str]]:
    """Return the chosen configuration and those that tie for the best balanced accuracy.

    The rule: the best mean balanced accuracy on held-out calibration images; a configuration ties with it
    if the 95 % interval of their paired difference over networks holds 0; of these the least mean sigma.
    """

    def mean(name: str, number: str) -> float:
        return sum(row[number] for row in scores[name]) / len(scores[name])

    def balanced(name: str) -> list[float]:
        return [row["balanced"] for row in scores[name]]

    best = max(scores, key=lambda name: mean(name, "balanced"))
    tied = [
        name
        for name in scores
        if name == best
        or paired_comparison(balanced(name), balanced(best)).verdict() == "not distinguishable"
    ]
    return min(tied, key=lambda name: mean(name, "sigma")), tied


States = dict[int, dict[str, Tensor]]  # weights after so many iterations


@dataclass(frozen=True)
class Kept:
    """Finished surgeries in a folder: what was done once is read afterwards."""

    folder: Path

    def get(self, name: str, make: Callable[[], States]) -> States:
        """Return the weights called `name`, made now if they are not there."""
        path = self.folder / f"{name.replace(' ', '_').replace(',', '')}.pt"
        if not path.exists():
            start = time.process_time()
            draft = path.with_suffix(".draft")
            torch.save(make(), draft)
            draft.replace(path)
            print(f"{name}: {time.process_time() - start:.0f} s of CPU", flush=True)
        found: States = torch.load(path, weights_only=True)
        return found


def sweep(model: nn.Module, images: Tensor) -> Tensor:
    """Return logits (n, C) in eval mode, of a model that is in it."""
    with torch.no_grad():
        return torch.cat([model(part) for part in images.split(250)])


def judged(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return evaluation(logits, labels, CLASSES).row()


def first_eigenvalue(model: nn.Module, hessian: HessianImages) -> float:
    operator = HessianOperator(model, hessian.images, hessian.labels)
    return float(lanczos(operator, 1, tol=1e-2).require_converged().values[0])


def walked(
    model: nn.Module,
    hessian: HessianImages,
    fitted: Calibration,
    config: SurgeryConfig,
    marks: Sequence[int],
) -> States:
    """Return the weights after as many iterations of a surgery as each of `marks` asks for.

    A surgery that stops early stays where it is. The model is left as it was.
    """
    said: States = {}

    def taken() -> dict[str, Tensor]:
        return {name: value.clone() for name, value in model.state_dict().items()}

    def look(step: Step) -> None:
        if step.done in marks:
            said[step.done] = taken()

    done = operate(model, hessian, fitted, config, look)
    last = taken()
    done.restore()
    return {mark: said.get(mark, last) for mark in marks}


def with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a model with other weights."""
    changed = copy.deepcopy(model)
    changed.load_state_dict(weights)
    return changed


def halves(calibration: Calibration, seed: int) -> tuple[Calibration, Calibration]:
    """Return the calibration images in two halves, drawn within classes."""
    order = torch.randperm(len(calibration), generator=torch.Generator().manual_seed(seed))
    order = order[calibration.labels[order].argsort(stable=True)]
    first, second = order[0::2], order[1::2]
    return tuple(  # type: ignore[return-value]
        Calibration(calibration.images[i], calibration.labels[i], calibration.classes)
        for i in (first, second)
    )
