"""A plan for a comparison within a time budget: how many epochs and seeds, of which methods, and why.

Pure arithmetic on measured seconds (`lt_lib.runs.timing` measures them); nothing starts here. The order of
priorities is fixed: three seeds before anything else, then enough epochs, then more seeds, then more epochs.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lt_lib._checks import check_choice
from lt_lib.runs.config import RunConfig
from lt_lib.runs.methods import METHODS, REFERENCE, method_config
from lt_lib.training.config import check_number

TOLERANCE = 0.2  # share of a plan by which its run may take longer
WAVE = 3  # seeds that are trained together; between waves the clock is looked at
_SEEDS, _MOST_SEEDS = 3, 10
_ENOUGH_STEPS = 3000  # optimiser steps, a round number: small networks have settled on small images by then


@dataclass(frozen=True)
class Cost:
    """What one run of a method takes, in seconds, while the other processes work, too."""

    epoch: float  # one epoch of training
    measure: float  # all parts measured once: after the epochs that are recorded, and at the end
    after: float = 0.0  # what follows the training, its measurement apart
    shared: float = 0.0  # share of its epochs that it takes over from cross-entropy with the same seed, 0..1

    def run(self, epochs: int, rows: int) -> float:
        """Seconds of a run of `epochs` epochs, `rows` of them recorded."""
        recorded = 0 if self.shared == 1 else rows
        return (1 - self.shared) * epochs * self.epoch + (recorded + 1) * self.measure + self.after


@dataclass(frozen=True)
class Timing:
    """Measured seconds."""

    costs: Mapping[str, Cost]  # by method
    steps: int  # optimiser steps of an epoch
    start: float = 0.0  # until a process has loaded program and data
    spent: float = 0.0  # on measuring


@dataclass(frozen=True)
class Plan:
    """What will be trained, how long that takes, and what was given up for it."""

    minutes: float  # the whole budget
    methods: tuple[str, ...]
    seeds: int
    epochs: int
    expected: float  # minutes of training and measuring runs
    aside: Mapping[str, float]  # minutes for everything else, by name
    timing: Timing
    workers: int
    dropped: Mapping[str, str] = field(default_factory=dict)  # method: why
    notes: tuple[str, ...] = ()
    fixed: bool = False  # by the reader or a profile: it runs to its end, whatever the clock says

    @property
    def total(self) -> float:
        """Minutes of everything, what is set aside included."""
        return self.expected + sum(self.aside.values())

    def configs(self, base: RunConfig) -> list[RunConfig]:
        """Return all runs, seed by seed, each in the order of `methods`."""
        return [method_config(base, name, s, self.epochs) for s in range(self.seeds) for name in self.methods]

    def text(self) -> str:
        """Return the plan in Markdown, to be shown before anything starts."""
        aside = ", ".join(f"{minutes:.1f} min {name}" for name, minutes in self.aside.items() if minutes)
        lines = [
            f"**Plan** for {self.minutes:g} minutes on {self.workers} process(es): "
            f"{len(self.methods)} methods, {self.seeds} seeds, {self.epochs} epochs each: "
            f"{self.expected:.1f} min of training{f', besides {aside}' if aside else ''}; "
            f"{self.total:.1f} min in all.",
            *self.notes,
            *(f"Dropped: {name}, {why}." for name, why in self.dropped.items()),
        ]
        rows = [
            "| method | seconds an epoch | epochs taken over from CE | minutes a run |",
            "| --- " * 4 + "|",
        ]
        for name in self.methods:
            cost = self.timing.costs[name]
            taken = f"{cost.shared:.0%}" if cost.shared else "–"
            rows.append(f"| {name} | {cost.epoch:.2f} | {taken} | {cost.run(self.epochs, 1) / 60:.2f} |")
        return "\n\n".join(["\n\n".join(lines), "\n".join(rows)])


def sensible_epochs(steps: int) -> tuple[int, int]:
    """Return (fewest, enough) epochs of `steps` optimiser steps each: a convention, not a measurement.

    Enough is 3,000 steps, but 20 to 200 epochs; fewest is a fifth of that.
    """
    enough = min(max(math.ceil(_ENOUGH_STEPS / steps), 20), 200)
    return max(enough // 5, 4), enough


def plan(
    minutes: float,
    timing: Timing,
    seeds: int | None = None,
    epochs: int | None = None,
    workers: int = 2,
    aside: Mapping[str, float] | None = None,
    measure_every: int | None = None,
) -> Plan:
    """Choose epochs and seeds so that the whole takes `minutes`, and say what had to go.

    From the budget go the minutes of `aside` and what measuring took. Three seeds come first, with as many
    epochs as fit, up to `sensible_epochs`; then seeds up to 10; then epochs, up to three times as many. If
    not even the fewest epochs fit, the costliest methods are dropped, one by one, until cross-entropy and
    one other remain; then a seed is given up. What `seeds` and `epochs` fix is kept.

    Args:
        minutes: the budget, for everything.
        timing: measured, with "CE" among its methods.
        seeds: None chooses them.
        epochs: None chooses them.
        workers: processes at once.
        aside: minutes of other work, such as {"surgery": 2}.
        measure_every: epochs between recorded measurements; None records the last epoch alone.

    Raises:
        ValueError: "CE" was not measured, a number is out of range, or the budget is too short even for two
            methods, two seeds and the fewest epochs; the sentence says how many minutes would do.
    """
    check_number(minutes, "minutes", 0.01, 1_000_000)
    if REFERENCE not in timing.costs:
        raise ValueError(
            f"`timing` must hold `{REFERENCE}`, with which all others are compared; it does not."
        )
    for name, value in {"seeds": seeds, "epochs": epochs, "measure_every": measure_every}.items():
        if value is not None:
            check_number(value, name, 2 if name == "seeds" else 1, 100_000, whole=True)
    for other, set_aside in (aside or {}).items():
        check_number(set_aside, f"aside[{other}]", 0, 1_000_000)
    besides = {"measuring": timing.spent / 60, **(aside or {})}
    room = minutes * 60 - sum(besides.values()) * 60
    search = _Search(timing, workers, measure_every, room)
    methods = list(timing.costs)
    if seeds is not None and epochs is not None:
        kept, s, e, dropped, fixed = methods, seeds, epochs, dict[str, str](), True
        notes = search.remarks(methods, seeds, epochs)
    else:
        (kept, s, e), dropped, notes = search.choose(methods, seeds, epochs, minutes)
        fixed = False
    expected = search.seconds(kept, s, e) / 60
    return Plan(minutes, tuple(kept), s, e, expected, besides, timing, workers, dropped, tuple(notes), fixed)


class _Search:
    def __init__(self, timing: Timing, workers: int, measure_every: int | None, room: float) -> None:
        check_number(workers, "workers", 1, 1024, whole=True)
        self.timing, self.workers, self.every, self.room = timing, workers, measure_every, room
        self.fewest, self.enough = sensible_epochs(timing.steps)

    def seconds(self, methods: Sequence[str], seeds: int, epochs: int) -> float:
        rows = 1 if self.every is None else math.ceil(epochs / self.every)
        costs = {name: self.timing.costs[name] for name in methods}
        waves = [min(WAVE, seeds - done) for done in range(0, seeds, WAVE)]
        return sum(self.timing.start + wave_seconds(costs, n, epochs, rows, self.workers) for n in waves)

    def fits(self, methods: Sequence[str], seeds: int, epochs: int) -> bool:
        return self.seconds(methods, seeds, epochs) <= self.room

    def epochs(self, methods: Sequence[str], seeds: int, most: int) -> int:
        """Return the most epochs that fit, at most `most`; 0 if none do."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(methods, seeds, middle) else (low, middle - 1)
        return low

    def choose(
        self, methods: list[str], seeds: int | None, epochs: int | None, minutes: float
    ) -> tuple[tuple[list[str], int, int], dict[str, str], list[str]]:
        notes: list[str] = []
        fewest, least = epochs or self.fewest, seeds or _SEEDS
        kept, dropped = self._affordable(methods, least, fewest)
        if not self.fits(kept, least, fewest):
            if seeds is not None or not self.fits(kept, 2, fewest):
                raise ValueError(self._too_short(kept, 2 if seeds is None else seeds, fewest, minutes))
            least = 2
            notes.append("Only 2 seeds fit, too few to trust an interval: give more minutes for 3.")
        s, e = least, epochs or self.epochs(kept, least, self.enough)
        if seeds is None and e >= (epochs or self.enough):
            while s < _MOST_SEEDS and self.fits(kept, s + 1, e):
                s += 1
        if epochs is None and e >= self.enough:
            e = max(e, self.epochs(kept, s, 3 * self.enough))
        return (kept, s, e), dropped, notes + self.remarks(kept, s, e)

    def _affordable(self, methods: list[str], seeds: int, epochs: int) -> tuple[list[str], dict[str, str]]:
        kept, dropped = list(methods), {}
        while len(kept) > 2 and not self.fits(kept, seeds, epochs):
            costs = {name: self.timing.costs[name].run(epochs, 1) for name in kept if name != REFERENCE}
            name = max(costs, key=lambda n: costs[n])
            kept.remove(name)
            dropped[name] = f"{costs[name] / 60:.1f} min a run, which does not fit with {seeds} seeds"
        return kept, dropped

    def remarks(self, methods: Sequence[str], seeds: int, epochs: int) -> list[str]:
        """Say what the reader should know about a choice."""
        notes = []
        if not self.fits(methods, seeds, epochs):
            over = (self.seconds(methods, seeds, epochs) - self.room) / 60
            notes.append(f"Epochs and seeds are fixed, and take {over:.1f} min more than the budget leaves.")
        if epochs < self.enough:
            notes.append(
                f"{epochs} epochs are {epochs * self.timing.steps} steps; {self.enough} epochs would be "
                "enough by our convention, so the networks may not have settled."
            )
        return notes

    def _too_short(self, methods: Sequence[str], seeds: int, epochs: int, minutes: float) -> str:
        work = (self.seconds(methods, seeds, epochs) + self.timing.spent) / 60
        share = 1 - (self.room + self.timing.spent) / 60 / minutes  # set aside; it may grow with the budget
        needed = work / (1 - share) if share < 1 else work + share * minutes
        return (
            f"`minutes` must be at least {math.ceil(needed * 10) / 10:g} for {' and '.join(methods)} "
            f"with {seeds} seeds and {epochs} epochs; found {minutes:g}. Give more minutes, fewer images, a "
            "smaller network or smaller images."
        )


def wave_seconds(costs: Mapping[str, Cost], seeds: int, epochs: int, rows: int, workers: int) -> float:
    """Return how long `run_many` takes for all methods and `seeds` seeds; see `run_ends`."""
    return max(run_ends(costs, seeds, epochs, rows, workers).values())


def run_ends(
    costs: Mapping[str, Cost], seeds: int, epochs: int, rows: int, workers: int
) -> dict[tuple[str, int], float]:
    """Return when each (method, seed) ends, in seconds after the first begins: `run_many`, played through.

    Cross-entropy comes first, then what shares nothing with it, late methods, and what follows a training;
    the next run goes to the process that is free first, and waits for the epochs that it takes over.

    Raises:
        ValueError: "CE" is not among the methods.
    """
    check_choice(REFERENCE, costs, "methods")
    jobs = sorted((_rank(name, cost), s, name) for name, cost in costs.items() for s in range(seeds))
    free, begun, ends = [0.0] * workers, {}, {}
    plain = costs[REFERENCE]
    for _, s, name in jobs:
        cost, begin = costs[name], heapq.heappop(free)
        if name == REFERENCE:
            begun[s] = begin
        elif cost.shared:
            whole = plain.run(epochs, rows) if cost.shared == 1 else cost.shared * epochs * plain.epoch
            begin = max(begin, begun[s] + whole)
        ends[name, s] = begin + cost.run(epochs, rows)
        heapq.heappush(free, ends[name, s])
    return ends


def _rank(name: str, cost: Cost) -> int:
    if name == REFERENCE:
        return 0
    return 3 if cost.shared == 1 else 2 if cost.shared else 1


def known_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` with "CE" first, each once.

    Raises:
        ValueError: a name is unknown; the known ones and the closest are listed.
    """
    for name in names:
        check_choice(name, METHODS, "methods")
    return tuple(dict.fromkeys((REFERENCE, *names)))
