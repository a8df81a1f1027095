"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "06_ablation.json"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_the_batchwise_part_alone_is_class_mean_cross_entropy(numbers: Any) -> None:
    assert abs(numbers["differences"]["t2"]) < 1  # points


def test_priors_do_nothing_without_a_regulariser(numbers: Any) -> None:
    assert numbers["inert"] is True


def test_counted_batches_agree_with_their_expectation(numbers: Any) -> None:
    assert numbers["standard errors"] < 5


def test_the_released_macro_factor_scales_the_step_and_favours_no_class(numbers: Any) -> None:
    assert numbers["step"]["many"] < 0.75 < numbers["step"]["few"] < 1.05
    strength = numbers["strength"]
    assert strength["both"] == pytest.approx(strength["batch-wise only"], rel=0.25)
    assert abs(numbers["differences"]["pa7"]) < 1.5  # points, at equal steps


def test_only_the_macro_factor_as_a_class_weight_gives_rare_classes_enough_strength(numbers: Any) -> None:
    strength = dict(numbers["strength"])
    assert 0.9 < strength.pop("β as class weight") < 1.25
    del strength["the same, with ε"]
    assert max(strength.values()) < 0.6
    assert numbers["differences"]["pa9"] > 2


def test_measured_strength_is_what_the_theorem_states(numbers: Any) -> None:
    for name, stated in numbers["theory"].items():
        assert numbers["strength"][name] == pytest.approx(stated, rel=0.1)


def test_an_unclamped_stopped_loss_needs_the_regulariser(numbers: Any) -> None:
    assert numbers["differences"]["pa4"] > 0
