"""A planned comparison, carried out: seeds in waves, and the clock looked at between them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lt_lib.runs.budget import TOLERANCE, WAVE, Plan
from lt_lib.runs.config import RunConfig
from lt_lib.runs.many import Report, run_many
from lt_lib.runs.results import Run
from lt_lib.runs.store import Store

PARTS = ("plain", "balanced", "worst")


@dataclass(frozen=True)
class Compared:
    """The runs of a plan."""

    runs: dict[str, list[Run]]  # method: one run a seed, from seed 0
    seeds: int  # that were trained
    seconds: float  # that it took
    note: str  # "" or why there are fewer seeds than planned

    def scores(self, part: str = "test") -> dict[str, dict[str, list[float]]]:
        """Return {method: {"plain", "balanced", "worst": one number a seed}}, accuracies in 0..1.

        Args:
            part: "test", "calibration" or "train".
        """
        return {
            name: {key: [run.metrics[part][key] for run in runs] for key in PARTS}
            for name, runs in self.runs.items()
        }


def compare_methods(
    plan: Plan,
    base: RunConfig,
    store: Store | None = None,
    progress: Report | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Compared:
    """Train, or take from the store, every run of `plan`; whole seeds are left out where time runs short.

    Three seeds are trained at a time. A further wave starts only if, at the pace so far, it ends within the
    plan's time and a fifth more; a plan whose epochs and seeds were fixed runs to its end.

    Args:
        plan: from `lt_lib.runs.budget.plan`.
        base: the configuration that was measured for it.
        store: by default `Store()`.
        progress: called with (finished runs, runs, config just finished), counted within a wave.
        clock: in seconds; only differences count.

    Raises:
        ValueError: bad settings or data.
        RunsFailed: runs failed; the others are stored.
    """
    began, configs, width = clock(), plan.configs(base), len(plan.methods)
    found: list[Run] = []
    note = ""
    for done in range(0, plan.seeds, WAVE):
        more = min(WAVE, plan.seeds - done)
        elapsed = clock() - began
        ahead = elapsed * (done + more) / done if done else 0.0
        if not plan.fixed and ahead > plan.expected * 60 * (1 + TOLERANCE):
            note = (
                f"The machine was slower than measured: {done} of {plan.seeds} seeds took "
                f"{elapsed / 60:.1f} of {plan.expected:.1f} minutes, so no more were started."
            )
            break
        found += run_many(configs[done * width : (done + more) * width], store, plan.workers, progress)
    seeds = len(found) // width
    runs = {name: found[i::width] for i, name in enumerate(plan.methods)}
    return Compared(runs, seeds, clock() - began, note)
