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
    images = len(split.train) + len(split.test)
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


def test_a_small_comparison_gives_scores_by_method_and_seed(tmp_path):
    found = compare_methods(small_plan(2, expected=1.0), small_config(), Store(tmp_path))
    scores = found.scores()
    assert list(scores) == ["CE", "CE + logit adjustment"]
    assert all(len(values) == 2 for by in scores.values() for values in by.values())
    run = found.runs["CE + logit adjustment"][1]
    assert run.config.after["name"] == "logit_adjustment"
    assert scores["CE + logit adjustment"]["balanced"][1] == run.metrics["test"]["balanced"]
    assert found.seconds > 0
