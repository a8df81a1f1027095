"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "10_surgery.json"
RECIPES = ("as written", "as released", "differentiable")
PARTS = ("bias", "gains", "remainder")


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_weights_come_back_to_the_bit(numbers: Any) -> None:
    assert numbers["exact"] is True


def test_the_step_satisfies_the_optimality_conditions(numbers: Any) -> None:
    assert numbers["kkt"] < 1e-6
    assert abs(numbers["gap"]) < 1e-6


def test_entries_of_the_sensitivity_matrix_rest_on_single_images(numbers: Any) -> None:
    assert numbers["single_image"] > 0


def test_the_parts_of_a_change_sum_to_it(numbers: Any) -> None:
    for recipe in RECIPES:
        shares = [numbers["parts"][f"{recipe}: logits: {part}"] for part in PARTS]
        assert min(shares) >= 0
        assert sum(shares) <= 1 + 1e-6  # below 1 where a network was left as it was
        for number in ("balanced", "sigma"):
            gain = sum(numbers["parts"][f"{recipe}: {number}: {part}"] for part in PARTS)
            change = numbers["methods"][recipe][number] - numbers["methods"]["base"][number]
            assert gain == pytest.approx(change, abs=1e-6)


def test_most_of_what_surgery_does_to_the_logits_is_a_bias_or_class_gains(numbers: Any) -> None:
    for recipe in RECIPES:
        assert numbers["parts"][f"{recipe}: logits: remainder"] < 0.45


def test_temperature_changes_no_prediction(numbers: Any) -> None:
    assert numbers["methods"]["temperature"] == numbers["methods"]["base"]


def test_cheap_controls_on_the_same_labels_lie_beyond_surgery(numbers: Any) -> None:
    methods = numbers["methods"]
    for recipe in RECIPES:
        for control in ("bias fit", "last layer"):
            assert methods[control]["sigma"] < methods[recipe]["sigma"]
            assert methods[control]["balanced"] > methods[recipe]["balanced"]


def test_the_level_rule_games_sigma(numbers: Any) -> None:
    level, base = numbers["methods"]["level rule"], numbers["methods"]["base"]
    assert level["sigma"] < 0.7 * base["sigma"]
    assert level["balanced"] < base["balanced"] - 0.1
