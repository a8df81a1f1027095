"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "08_hessian_spikes.json"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_the_theorems_hold_on_heads_and_their_bounds_on_networks(numbers: Any) -> None:
    for name in ("theorem_exact", "phases_agree", "bounds_hold", "trained_bounds_hold"):
        assert numbers[name] is True


def test_every_eigenpair_used_is_certified(numbers: Any) -> None:
    assert numbers["certified"] is True
    assert numbers["residual"] <= 0.01


def test_the_largest_gap_is_mostly_elsewhere_than_after_one_less_than_the_classes(numbers: Any) -> None:
    assert numbers["c1"] < numbers["measured"] / 2


def test_ten_steps_lose_the_last_pair_but_not_the_first(numbers: Any) -> None:
    assert numbers["first-share"] == pytest.approx(1, abs=0.01)
    assert numbers["last-share"] < 0.5
    assert numbers["last-bad"] == numbers["networks"]


def test_spikes_are_vector_scaling_more_than_random_directions_and_later_vectors(numbers: Any) -> None:
    assert numbers["above-random"] > 0.05
    assert numbers["above-later"] > 0.1


def test_fewer_images_turn_the_spikes_further(numbers: Any) -> None:
    angles = [numbers["mean_angles"][key] for key in sorted(numbers["mean_angles"], key=int)]
    assert angles == sorted(angles, reverse=True)
