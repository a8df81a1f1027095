"""A planned comparison, carried out: seeds in waves, with an eye on the clock."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lt_lib.runs.budget import TOLERANCE, WAVE, Plan, run_ends
from lt_lib.runs.config import RunConfig
from lt_lib.runs.many import Report, run_many
from lt_lib.runs.methods import REFERENCE
from lt_lib.runs.results import Run
from lt_lib.runs.store import Store

PARTS = ("plain", "balanced", "worst")
_TELLING = 0.15  # share of a wave's planned time after which a run's end tells the pace

Clock = Callable[[], float]


@dataclass(frozen=True)
class Compared:
    """The runs of a plan."""

    runs: dict[str, list[Run]]  # method: one run a seed, from seed 0
    seeds: int  # that were trained
    seconds: float  # that it took
    note: str  # "" or why there are fewer seeds or methods than planned

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
    clock: Clock = time.monotonic,
) -> Compared:
    """Train, or take from the store, every run of `plan`; where time runs short, something is left out.

    Three seeds are trained at a time. Whenever a run ends, its time is compared with the planned one. If at
    this pace the first wave does not end within the plan's time and a fifth more, it goes on without the
    costliest methods, down to two, and then without the third seed, as a plan would; a further wave ends, or
    does not start. What was trained stays in the store, and `note` says what is missing. A plan whose epochs
    and seeds were fixed runs to its end.

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
    return _Comparison(plan, base, store, progress, clock).carried_out()


class _TooSlow(Exception):
    """The wave would end too late: `pace` is measured over planned time, `ended` what has ended."""

    def __init__(self, pace: float, ended: Sequence[tuple[str, int]]) -> None:
        super().__init__(pace)
        self.pace, self.ended = pace, ended


class _Comparison:
    def __init__(
        self, plan: Plan, base: RunConfig, store: Store | None, progress: Report | None, clock: Clock
    ) -> None:
        self.plan, self.base, self.store, self.progress, self.clock = plan, base, store, progress, clock
        self.began, self.methods = clock(), plan.methods
        self.limit = math.inf if plan.fixed else plan.expected * 60 * (1 + TOLERANCE)

    def carried_out(self) -> Compared:
        found: list[Run] = []
        done, more = 0, min(WAVE, self.plan.seeds)
        while more and not (done and self._elapsed() * (done + more) / done > self.limit):
            try:
                found += run_many(
                    self._configs(done, more), self.store, self.plan.workers, self._watch(done, more)
                )
            except _TooSlow as slow:
                if done:
                    break
                more = self._shrink(more, slow)
                continue
            done += more
            more = min(WAVE, self.plan.seeds - done) if more == WAVE else 0
        runs = {name: found[i :: len(self.methods)] for i, name in enumerate(self.methods)}
        return Compared(runs, done, self._elapsed(), self._note(done))

    def _elapsed(self) -> float:
        return self.clock() - self.began

    def _configs(self, done: int, more: int) -> list[RunConfig]:
        reached = replace(self.plan, methods=self.methods, seeds=done + more)
        return reached.configs(self.base)[done * len(self.methods) :]

    def _planned(self, methods: Sequence[str], seeds: int) -> dict[tuple[str, int], float]:
        """When each run of a wave should end, by method and seed, the start of processes included."""
        costs = {name: self.plan.timing.costs[name] for name in methods}
        rows = math.ceil(self.plan.epochs / self.base.measure_every)
        ends = run_ends(costs, seeds, self.plan.epochs, rows, self.plan.workers)
        return {job: self.plan.timing.start + end for job, end in ends.items()}

    def _watch(self, done: int, more: int) -> Report:
        """Pass reports on, and stop the wave when it falls behind and something is left to leave out."""
        before, planned = self._elapsed(), self._planned(self.methods, more)
        jobs = [(name, s) for s in range(more) for name in self.methods]
        configs, last = self._configs(done, more), max(planned.values())
        ended: list[tuple[str, int]] = []
        able = done > 0 or len(self.methods) > 2 or more > 2

        def watch(finished: int, runs: int, config: RunConfig) -> None:
            if self.progress is not None:
                self.progress(finished, runs, config)
            ended.append(jobs[configs.index(config)])
            due = planned[ended[-1]]
            pace = (self._elapsed() - before) / due
            if able and finished < runs and due >= _TELLING * last and before + pace * last > self.limit:
                raise _TooSlow(pace, ended)

        return watch

    def _shrink(self, seeds: int, slow: _TooSlow) -> int:
        """Leave methods out, the costliest first, and return how many seeds go on: at least 2 of either."""
        seconds = {name: cost.run(self.plan.epochs, 1) for name, cost in self.plan.timing.costs.items()}
        while len(self.methods) > 2 or seeds > 2:
            if len(self.methods) > 2:
                dear = max((n for n in self.methods if n != REFERENCE), key=lambda name: seconds[name])
                self.methods = tuple(name for name in self.methods if name != dear)
            else:
                seeds -= 1
            ended = sum(seconds[n] for n, s in slow.ended if n in self.methods and s < seeds)
            ahead = max(self._planned(self.methods, seeds).values()) - ended / self.plan.workers
            if self._elapsed() + slow.pace * ahead <= self.limit:
                break
        return seeds

    def _note(self, done: int) -> str:
        took = f"took {self._elapsed() / 60:.1f} of {self.plan.expected:.1f} minutes"
        left = [name for name in self.plan.methods if name not in self.methods]
        slower = "The machine was slower than measured:"
        told = f" {', '.join(left)} left out, and" if left else ""
        if done < self.plan.seeds:
            return f"{slower}{told} {done} of {self.plan.seeds} seeds {took}, so no more were started."
        if left or self._elapsed() > self.limit:
            return f"{slower}{told} {done} seeds of {len(self.methods)} methods {took}."
        return ""
