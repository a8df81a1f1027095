"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "03_training_dynamics.json"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_without_the_clamp_the_released_loss_is_class_mean_cross_entropy(numbers: Any) -> None:
    assert abs(numbers["differences"]["pa6"]) < 0.01


def test_stopping_the_gradient_costs_accuracy_and_moves_training_losses_apart(numbers: Any) -> None:
    assert numbers["differences"]["pa2"] < -0.01
    assert numbers["differences"]["pa12"] > 0.03


def test_weights_applied_as_constants_without_regulariser_end_near_chance(numbers: Any) -> None:
    assert numbers["losses"]["written, α = 0"]["balanced accuracy, %"]["mean"] < 0.3
    assert numbers["losses"]["CE"]["balanced accuracy, %"]["mean"] > 0.8


def test_no_loss_equalises_the_class_losses(numbers: Any) -> None:
    trained = {name: entry for name, entry in numbers["losses"].items() if name != "written, α = 0"}
    assert min(entry["ρ, train"]["mean"] for entry in trained.values()) > 0.5
