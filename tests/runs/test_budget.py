"""Plans on made-up step times, against schedules worked out by hand."""

import pytest
from small_runs import small_config

from lt_lib.runs.budget import Cost, Timing, known_methods, plan, sensible_epochs, wave_seconds
from lt_lib.runs.methods import METHODS

CHEAP, DEAR = Cost(epoch=1, measure=2), Cost(epoch=4, measure=2)
LATE, AFTER = Cost(1, 2, shared=0.8), Cost(1, 2, after=3, shared=1)


def timing(steps=100, start=0.0, spent=0.0, **costs):
    return Timing({"CE": CHEAP, **costs}, steps, start, spent)


def test_a_wave_is_the_schedule_of_run_many():
    # by hand: a run of CE takes 10 + 2 * 2 = 14 s; one process takes one after the other
    assert wave_seconds({"CE": CHEAP}, seeds=3, epochs=10, rows=1, workers=1) == 42
    assert wave_seconds({"CE": CHEAP}, seeds=3, epochs=10, rows=1, workers=2) == 28
    # a late method trains two of ten epochs, and 2 * 2 s of measuring: 6 s, from second 8 of CE on
    assert wave_seconds({"CE": CHEAP, "late": LATE}, 1, 10, 1, workers=2) == 14
    assert wave_seconds({"CE": CHEAP, "late": LATE}, 1, 10, 1, workers=1) == 20
    # what follows a training waits for all of it, and is measured once
    assert wave_seconds({"CE": CHEAP, "after": AFTER}, 1, 10, 1, workers=2) == 14 + 5


@pytest.mark.parametrize("steps", [1, 15, 100, 313, 10_000])
def test_conventional_epochs_keep_their_bounds(steps):
    fewest, enough = sensible_epochs(steps)
    assert 4 <= fewest < enough
    assert 20 <= enough <= 200
    assert enough in (20, 200) or enough * steps >= 3000


def test_three_seeds_come_before_epochs_and_epochs_before_more_seeds():
    # 100 steps: fewest 6, enough 30 epochs. 3 seeds of CE at 30 epochs: 3 * 34 s on one process
    assert plan(60 / 60, timing(), workers=1).seeds == 3
    assert plan(60 / 60, timing(), workers=1).epochs == 16  # 3 * (16 + 4) = 60
    full = plan(3 * 34 / 60, timing(), workers=1)
    assert (full.seeds, full.epochs) == (3, 30)
    more = plan(5 * 34 / 60, timing(), workers=1)
    assert (more.seeds, more.epochs) == (5, 30)
    most = plan(20 * 34 / 60, timing(), workers=1)
    assert (most.seeds, most.epochs) == (10, 64)  # 10 * (64 + 4) = 680
    assert plan(1000, timing(), workers=1).epochs == 90  # three times enough


def test_what_is_set_aside_and_spent_shortens_the_training():
    whole = plan(2, timing(), workers=1)
    less = plan(2, timing(spent=12.0, start=3.0), workers=1, aside={"surgery": 0.5})
    assert less.epochs < whole.epochs
    assert less.total <= 2
    assert less.aside == {"measuring": 0.2, "surgery": 0.5}
    # 120 - 12 - 30 - 3 = 75 = 3 * (21 + 4)
    assert (less.seeds, less.epochs) == (3, 21)


def test_the_costliest_methods_go_first_and_the_plan_says_so():
    found = plan(1.5, timing(dear=DEAR, cheap=CHEAP), workers=1)
    # 6 epochs: 3 * (10 + 28 + 10) = 144 s do not fit into 90, without `dear` 60 s do
    assert found.methods == ("CE", "cheap")
    assert "Dropped: dear, 0.5 min a run, which does not fit with 3 seeds." in found.text()
    assert found.epochs == 11  # 3 * 2 * (11 + 4) = 90
    assert "the networks may not have settled" in found.text()


def test_a_seed_goes_last_and_then_the_budget_is_refused():
    two = plan(0.75, timing(cheap=CHEAP), workers=1)  # 2 * 2 * 10 = 40 of 45 s
    assert two.seeds == 2
    assert "Only 2 seeds fit" in two.text()
    with pytest.raises(
        ValueError, match=r"`minutes` must be at least 0\.7 for CE and cheap with 2 seeds and 6"
    ):
        plan(0.5, timing(cheap=CHEAP), workers=1)
    assert plan(0.7, timing(cheap=CHEAP), workers=1).seeds == 2  # the way out that the sentence names
    slow = timing(cheap=CHEAP, spent=6.0)
    for aside in (lambda minutes: 0.2 * minutes, lambda _: 0.1, lambda _: 3.0):  # it works for any of them
        with pytest.raises(ValueError, match="with 2 seeds and 6") as error:
            plan(0.5, slow, workers=1, aside={"surgery": aside(0.5)})
        enough = float(str(error.value).split("at least ")[1].split()[0])
        assert plan(enough, slow, workers=1, aside={"surgery": aside(enough)}).seeds == 2
        assert enough < 4


def test_what_is_fixed_is_kept_and_an_overrun_is_said():
    found = plan(1, timing(dear=DEAR), seeds=3, epochs=30, workers=1)
    assert (found.seeds, found.epochs, found.fixed) == (3, 30, True)
    assert found.methods == ("CE", "dear")
    # 3 * (34 + 124) = 474 s
    assert found.expected == pytest.approx(7.9)
    assert "take 6.9 min more than the budget leaves" in found.text()
    assert plan(2, timing(), epochs=8, workers=1).seeds == 10  # 10 * 12 s
    assert plan(2, timing(), seeds=2, workers=1).epochs == 56  # 2 * 60 s


def test_a_plan_is_text_before_it_is_runs():
    names = ("CE", "LDAM-DRW", "class-balanced (late)")
    found = plan(
        6, timing(steps=4, **{n: Cost(0.1, 0.1, shared=METHODS[n].shared) for n in names}), workers=2
    )
    text = found.text()
    assert "3 methods, 10 seeds" in text
    assert "| class-balanced (late) | 0.10 | 80% |" in text
    configs = found.configs(small_config())
    assert len(configs) == 30
    assert [c.seed for c in configs[:4]] == [0, 0, 0, 1]
    assert configs[1].net["head"] == "cosine"
    assert {c.training.epochs for c in configs} == {found.epochs}
    assert configs[2].loss == {"name": "class_balanced", "defer_epoch": 0.8}
    assert configs[0] == type(configs[0]).from_dict(configs[0].to_dict())


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="Did you mean `balanced softmax`"):
        known_methods(["balanced softmacks"])
    assert known_methods(["GLMC", "CE", "GLMC"]) == ("CE", "GLMC")
    with pytest.raises(ValueError, match="must hold `CE`"):
        plan(1, Timing({"focal": CHEAP}, 10))
    with pytest.raises(ValueError, match="`seeds` must be a whole number from 2"):
        plan(1, timing(), seeds=1)
    for minutes in (-1, float("nan"), "2"):
        with pytest.raises(ValueError, match=r"`aside\[surgery\]` must be a number from 0"):
            plan(10, timing(), aside={"surgery": minutes})
    with pytest.raises(ValueError, match="`minutes` must be a number"):
        plan("15", timing())
