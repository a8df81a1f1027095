"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "09_bulk_walk.json"
SPIKES, BULK = "spikes", "random, spikes removed"
STRUCTURED = ("next Ritz vectors", "class gradients, spikes removed", "class gradients, 2C removed")


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_the_networks_are_bit_identical_after_all_walks(numbers: Any) -> None:
    assert numbers["identical"] is True


def test_random_directions_meet_the_spikes_as_often_as_chance_says(numbers: Any) -> None:
    # 200 draws of a Beta law whose relative deviation is sqrt(2 / 9)
    assert numbers["mean_overlap"] == pytest.approx(1, abs=0.15)
    assert numbers["identity_error"] < 1e-3


def test_the_spikes_hold_much_of_the_trace_and_little_of_a_random_direction(numbers: Any) -> None:
    assert 0.4 < numbers["share"] < 0.95
    assert numbers["flatter"] < 0.7
    assert numbers["kept"] > 0.999
    assert numbers["straight"] > 0.9999


def test_structured_bulk_directions_change_classes_at_equal_step(numbers: Any) -> None:
    flat = numbers["flat"]
    assert flat[f"{BULK}: equal step"] < 0.15
    assert min(flat[f"{name}: equal step"] for name in (*STRUCTURED, SPIKES)) > 0.5


def test_no_family_is_invariant_at_equal_loss_and_spikes_do_not_stand_out(numbers: Any) -> None:
    changes = {n: numbers["flat"][f"{n}: equal loss"] for n in ("random", BULK, *STRUCTURED, SPIKES)}
    assert min(changes.values()) > 0.1
    assert max(changes.values()) < 2.5 * min(changes.values())
    assert max(numbers["rank"].values()) < -0.4


def test_what_the_spikes_leave_of_a_class_gradient_is_about_that_class(numbers: Any) -> None:
    assert numbers["differences"]["own"] < -0.05
    assert numbers["differences"]["own-deep"] < -0.05


def test_a_spike_costs_far_more_than_a_random_direction_of_that_length(numbers: Any) -> None:
    table = numbers["table"]
    assert table[SPIKES]["curvature"] > 100 * table["random"]["curvature"]
    assert table[SPIKES]["length"] < 0.1 * table[BULK]["length"]
    assert all(entry["reached"] == 1 for entry in table.values())
