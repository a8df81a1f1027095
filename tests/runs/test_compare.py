"""Measured costs, and a comparison that stops in time."""

from dataclasses import replace

import pytest
from small_runs import small_config

from lt_lib.runs import Store, compare, timing
from lt_lib.runs.budget import Cost, Timing, plan
from lt_lib.runs.compare import compare_methods


class Clock:
    """A clock that the work moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_costs_are_the_time_of_steps_scaled_to_an_epoch(monkeypatch):
    clock, epochs = Clock(), []

    def run_epoch(trainer, epoch):
        epochs.append(epoch)
        clock.now += 0.5 * trainer.steps_per_epoch * len(trainer.recipe.augments(trainer.config))

    def look(trainer, part):
        clock.now += 0.01 * len(part)

    monkeypatch.setattr(timing.Trainer, "run_epoch", run_epoch)
    monkeypatch.setattr(timing, "_look", look)
    base = small_config(batch=8)
    split = base.split()
    names = ["GLMC", "CE + cRT", "class-balanced (late)"]
    found = timing.measure_costs(base, names, workers=1, seconds=3.0, clock=clock)
    assert list(found.costs) == ["CE", *names]
    assert found.steps == -(-len(split.train) // 8) == 9
    ce, glmc, crt, late = found.costs.values()
    images = sum(len(part) for part in split.parts().values())
    assert images > len(split.train) + len(split.test)  # the calibration part is measured, too
    assert ce == Cost(pytest.approx(4.5), pytest.approx(0.01 * images))
    assert glmc.epoch > 0
    assert crt.shared == 1
    # ten epochs, of two forward passes each
    assert crt.after == pytest.approx(2 * 10 * len(split.train) * 0.01)
    assert late.shared == 0.8
    assert set(epochs) == {base.training.epochs - 1}  # where a late method is on
    assert found.start == 0
    assert found.spent == clock.now


def test_companions_train_beside_the_measurement_and_end_with_it():
    with timing._companions(small_config(), 1, timing.time.perf_counter) as seconds:
        assert seconds > 0
    with timing._companions(small_config(), 0, timing.time.perf_counter) as seconds:
        assert seconds == 0


def small_plan(seeds, **fixed):
    costs = {"CE": Cost(1, 1), "CE + logit adjustment": Cost(1, 1, shared=1)}
    return replace(
        plan(10, Timing(costs, 100), seeds=2, epochs=2, workers=1), seeds=seeds, fixed=False, **fixed
    )


def test_seeds_are_left_out_where_the_machine_is_slower_than_measured(tmp_path, monkeypatch):
    clock, asked = Clock(), []

    def slow(configs, store, workers, progress):
        asked.append(len(configs))
        clock.now += 100.0
        return list(configs)

    monkeypatch.setattr(compare, "run_many", slow)
    found = compare_methods(
        small_plan(7, expected=2.9), small_config(), clock=clock
    )  # 6 seeds would be 200 s
    assert asked == [6, 6]
    assert found.seeds == 6
    assert "6 of 7 seeds took 3.3 of 2.9 minutes" in found.note
    assert [run.seed for run in found.runs["CE"]] == list(range(6))
    asked.clear()
    whole = compare_methods(replace(small_plan(7, expected=2.9), fixed=True), small_config(), clock=clock)
    assert asked == [6, 6, 2]
    assert whole.seeds == 7
    assert whole.note == ""


MEASURED = {
    "CE": Cost(1, 2),
    "GLMC": Cost(3, 2),
    "focal": Cost(1, 2),
    "CE + logit adjustment": Cost(1, 2, shared=1),
}


BASE = replace(small_config(), measure_every=1000)


def method_of(config):
    names = {"ce": "CE", "glmc": "GLMC", "focal": "focal"}
    return names[config.loss["name"]] if config.after is None else "CE + logit adjustment"


@pytest.fixture
def machine(monkeypatch):
    """Stands for `run_many` on one process, `slow` times as slow as measured; what is done stays done."""
    clock, stored = Clock(), []

    def run(configs, store, workers, progress):
        missing = [c for c in configs if c not in stored]
        missing.sort(key=lambda c: (c.after is not None, c.loss["name"] != "ce"))
        for i, config in enumerate(missing, start=1):
            clock.now += run.slow * MEASURED[method_of(config)].run(config.training.epochs, 1)
            stored.append(config)
            progress(i, len(missing), config)
        return list(configs)

    run.slow, run.clock = 1.0, clock
    monkeypatch.setattr(compare, "run_many", run)
    return run


def carried_out(machine, slow, minutes=6.0, **fixed):
    machine.slow = slow
    chosen = plan(minutes, Timing(MEASURED, 100), workers=1, **fixed)
    return chosen, compare_methods(chosen, BASE, clock=machine.clock)


def test_a_comparison_on_pace_loses_nothing(machine):
    chosen, found = carried_out(machine, 1.15)
    assert found.seconds == pytest.approx(1.15 * chosen.expected * 60)
    assert (tuple(found.runs), found.seeds, found.note) == (chosen.methods, chosen.seeds, "")
    assert chosen.total <= 6


@pytest.mark.parametrize("slow", [1.3, 1.6, 2.0])
def test_on_a_slower_machine_the_costliest_method_goes_and_the_time_is_kept(machine, slow):
    chosen, found = carried_out(machine, slow)
    assert chosen.seeds == 3
    assert found.seconds <= 1.2 * chosen.expected * 60
    assert found.seeds == 3
    assert "GLMC" not in found.runs
    assert {"CE", "CE + logit adjustment"} <= set(found.runs)
    assert [run.seed for run in found.runs["CE"]] == [0, 1, 2]
    assert "slower than measured: GLMC" in found.note
    assert f"left out, and 3 seeds of {len(found.runs)} methods took" in found.note


def test_two_seeds_of_two_methods_stay_however_slow_it_is_and_the_overrun_is_told(machine):
    chosen, found = carried_out(machine, 6.0)
    assert (len(found.runs), found.seeds) == (2, 2)
    assert found.seconds > 1.2 * chosen.expected * 60
    assert f"2 of 3 seeds took {found.seconds / 60:.1f} of {chosen.expected:.1f} minutes" in found.note


def test_a_fixed_plan_runs_to_its_end_however_slow_it_is(machine):
    chosen, found = carried_out(machine, 3.0, seeds=3, epochs=10)
    assert (chosen.fixed, tuple(found.runs), found.seeds) == (True, chosen.methods, 3)
    assert found.note == ""


def test_a_later_wave_is_ended_when_the_machine_becomes_slow_in_it(machine):
    machine.slow = 1.0
    chosen = plan(60, Timing(MEASURED, 100), epochs=20, workers=1)
    assert chosen.seeds == 10

    def slower(finished, runs, config):
        machine.slow = 4.0 if config.seed >= 3 else 1.0

    found = compare_methods(chosen, BASE, progress=slower, clock=machine.clock)
    assert found.seeds in (3, 6)
    assert found.seconds <= 1.2 * chosen.expected * 60
    assert f"{found.seeds} of 10 seeds took" in found.note


def test_a_small_comparison_gives_scores_by_method_and_seed(tmp_path):
    found = compare_methods(small_plan(2, expected=1.0), small_config(), Store(tmp_path))
    scores = found.scores()
    assert list(scores) == ["CE", "CE + logit adjustment"]
    assert all(len(values) == 2 for by in scores.values() for values in by.values())
    run = found.runs["CE + logit adjustment"][1]
    assert run.config.after["name"] == "logit_adjustment"
    assert scores["CE + logit adjustment"]["balanced"][1] == run.metrics["test"]["balanced"]
    assert found.seconds > 0
