"""The best configuration of surgery by calibration images alone, beside the published ones and the controls.

    OMP_NUM_THREADS=1 python -m benchmarks.recommended [--quick] [--seeds 3] [--folder build/benchmarks/...]

A small ResNet is trained on long-tailed Fashion-MNIST (4,000 to 80 images a class, factor 50) for each seed,
with split, cut and training of its own; 500 images a class are set aside for calibration before. Each of the
eight configurations of `benchmarks._recommended.GRID` is fitted to one half of a network's calibration
images and judged on the other; the rule of `choose` picks one. Then the same weights of the chosen and the
published ones are judged on the official test part, beside the bias fit (complete, and stopped early) and
logit adjustment, alone and together; the controls see the same half. Test images choose nothing. Finished
surgeries are kept in `--folder`, so that a run that was stopped goes on; trained networks are in the run
store (`LT_RUNS`). The table goes to `benchmarks/results/recommended[-quick].md`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._eigenpairs_report import RESULTS
from benchmarks._recommended import (
    GRID,
    MARKS,
    RELEASED,
    SOFT,
    WRITTEN,
    Kept,
    States,
    choose,
    first_eigenvalue,
    halves,
    judged,
    settings,
    sweep,
    walked,
    with_weights,
)
from benchmarks._recommended_report import report
from lt_lib.data import normalisation
from lt_lib.posthoc import adjusted_head, fit_logit_bias, logit_adjustment, with_head
from lt_lib.posthoc.bias_path import bias_path, equal_recall_path
from lt_lib.runs import Run, RunConfig, run
from lt_lib.runs.machine import project_commit
from lt_lib.surgery import Calibration, HessianImages
from lt_lib.training import evaluate

PUBLISHED = {"as written": (WRITTEN, 5), "as released": (RELEASED, 5), "differentiable": (SOFT, 4)}
STEPS = (4, 32)  # of gradient descent after which the bias fit is stopped early and later
TAUS = (1.0, 1.5)
SAME = {"tol": 1e-2, "batch": 250}  # of every surgery


def config(seed: int, quick: bool) -> RunConfig:
    """Return a network to train; the seed is also that of its split and its cut."""
    data = {"name": "fashion_mnist", "largest": 4000, "imbalance": 50, "calibration": 500}
    small = {"name": "digits", "largest": 60, "imbalance": 10, "calibration": 20, "test": 50}
    training = {"epochs": 8, "batch": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "warmup": 1}
    return RunConfig(
        data=small if quick else data,
        net={"depth": 8, "width": 2} if quick else {"depth": 8, "width": 4},
        loss={"name": "ce"},
        training=training | {"schedule": "cosine", "augment": "none", "device": "cpu", "threads": 1},
        seed=seed,
        data_seed=seed,
        measure_every=1000,
    )


@dataclass(frozen=True)
class Case:
    """A trained network, the images that surgery may see, and those that choose among surgeries."""

    run: Run
    model: nn.Module
    hessian: HessianImages
    seen: Calibration
    held: Calibration
    kept: Kept
    cap: int  # of iterations

    def operated(self, name: str, path: str, count: int, model: nn.Module | None = None) -> nn.Module:
        """Return the network after so many iterations of a path, fitted to the first half."""
        start, marks = model or self.model, [min(mark, self.cap) for mark in MARKS[path]]

        def fit() -> States:
            largest = first_eigenvalue(self.model, self.hessian) if path == RELEASED else 1.0
            chosen = settings(path, max(marks), largest, **SAME)
            return walked(start, self.hessian, self.seen, chosen, marks)

        return with_weights(start, self.kept.get(name, fit)[min(count, self.cap)])

    def of(self, path: str, count: int) -> nn.Module:
        """Return the operated network from the one as trained."""
        return self.operated(f"{self.run.config.seed} {path}", path, count)

    def shifted(self, path: str, count: int) -> nn.Module:
        """Return the operated network from the one with fitted biases."""
        shift = fit_logit_bias(sweep(self.model, self.seen.images), self.seen.labels).shift
        start = with_head(self.model, adjusted_head(self.model.head, shift=shift)).eval()
        return self.operated(f"{self.run.config.seed} bias fit then {path}", path, count, start)


def opened(trained: Run, kept: Kept, images: int, cap: int) -> Case:
    split, seed = trained.config.split(), trained.config.seed
    hessian = HessianImages.from_split(split, images, seed)
    calibration = Calibration.from_split(split, drop_shared=True)
    return Case(trained, trained.load_model(), hessian, *halves(calibration, seed), kept, cap)


def scored(case: Case) -> dict[str, dict[str, float]]:
    """Return each configuration's numbers on the half of the calibration images that it did not see."""
    operated = {name: case.of(*place) for name, place in GRID.items()}
    return {name: judged(sweep(net, case.held.images), case.held.labels) for name, net in operated.items()}


def controls_on_held(case: Case) -> dict[str, dict[str, float]]:
    """Return the numbers of no surgery and of the controls on the same half, for comparison."""
    fitted, logits = sweep(case.model, case.seen.images), sweep(case.model, case.held.images)
    found = changes(fitted, case.seen.labels, logits, case.run)
    return {name: judged(changed, case.held.labels) for name, changed in found.items()}


def changes(
    fitted: Tensor, labels: Tensor, logits: Tensor, trained: Run, few: bool = False
) -> dict[str, Tensor]:
    """Return the logits that each control makes of `logits`, after a fit to other logits and labels.

    With `few` only those that are also set on top of surgery.
    """
    counts = trained.config.split().counts
    found = {"base": logits, "bias fit": fit_logit_bias(fitted, labels)(logits)}
    found |= {f"adjustment, τ = {tau:g}": logit_adjustment(logits, counts, tau) for tau in TAUS}
    if few:
        return found
    path, equal = bias_path(fitted, labels, max(STEPS)), equal_recall_path(fitted, labels)
    found |= {f"bias fit, {n} steps": path.scaling(path.steps.index(n))(logits) for n in STEPS}
    return found | {"bias of equal recalls": equal.scaling(equal.least_sigma())(logits)}


def tested(case: Case, chosen: str) -> dict[str, dict[str, float]]:
    """Return every method's numbers on the test part."""
    split, found = case.run.config.split(), {}

    def corrected(net: nn.Module, few: bool = True) -> dict[str, dict[str, float]]:
        logits = evaluate(net, split.test, normalisation(split.train)).logits
        made = changes(sweep(net, case.seen.images), case.seen.labels, logits, case.run, few)
        return {name: judged(changed, split.test.labels) for name, changed in made.items()}

    found |= corrected(case.model, few=False)
    for name, place in {**PUBLISHED, "recommended": GRID[chosen]}.items():
        after = corrected(case.of(*place))
        found |= {
            name: after["base"],
            f"{name}, then bias fit": after["bias fit"],
            f"{name}, then adjustment, τ = 1": after["adjustment, τ = 1"],
        }
    return found | {"bias fit, then recommended": corrected(case.shifted(*GRID[chosen]))["base"]}


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return a list over networks for each name."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def main(arguments: Sequence[str] | None = None) -> str:
    """Run what is missing, write the table, and return the name of the chosen configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, a tiny network, single iterations")
    parser.add_argument("--seeds", type=int, default=3, help="networks, at least 2")
    parser.add_argument("--images", type=int, help="for the Hessian; 256 (64)")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/recommended"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the table")
    options = parser.parse_args(arguments)
    options.images = options.images or (64 if options.quick else 256)
    options.folder.mkdir(parents=True, exist_ok=True)
    check_same(options)
    kept, cap = Kept(options.folder), 1 if options.quick else 1000
    torch.manual_seed(0)
    runs = [run(config(seed, options.quick)) for seed in range(options.seeds)]
    cases = [opened(trained, kept, options.images, cap) for trained in runs]
    scores = columns([scored(case) for case in cases])
    chosen, tied = choose(scores)
    print(f"chosen: {chosen}; tied: {tied}", flush=True)
    beside = columns([controls_on_held(case) for case in cases])
    numbers = columns([tested(case, chosen) for case in cases])
    about = {"seeds": options.seeds, "images": options.images, "seen": len(cases[0].seen)}
    about |= {"parameters": sum(p.numel() for p in cases[0].model.parameters()), "net": runs[0].config.net}
    about |= {"commit": project_commit(), "test": len(runs[0].config.split().test), "quick": options.quick}
    text = report(about, scores, beside, numbers, (chosen, tied))
    options.results.mkdir(exist_ok=True)
    (options.results / f"recommended{'-quick' * options.quick}.md").write_text(text, encoding="utf-8")
    print(text)
    return chosen


def check_same(options: argparse.Namespace) -> None:
    """Refuse a folder with results of other settings."""
    ours = {"quick": options.quick, "images": options.images, "net": config(0, options.quick).net, **SAME}
    file = options.folder / "settings.json"
    if file.exists() and json.loads(file.read_text(encoding="utf-8")) != json.loads(json.dumps(ours)):
        raise SystemExit(f"{options.folder} holds results of other settings. Pass another `--folder`.")
    file.write_text(json.dumps(ours), encoding="utf-8")


if __name__ == "__main__":
    main()
