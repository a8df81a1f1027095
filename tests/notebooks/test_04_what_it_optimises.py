"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "04_what_it_optimises.json"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_functions_of_the_class_losses_are_explained_by_their_coefficients(numbers: Any) -> None:
    explained = numbers["explained"]
    exact = ("ce", "class_mean", "class_balanced", "loss_proportional", "inverse, as released")
    assert all(explained[name] == pytest.approx(1, abs=1e-9) for name in exact)
    assert all(explained[name] < 0.999 for name in ("focal", "balanced_softmax", "ib"))


def test_the_identity_holds_without_the_clamp_and_not_with_it(numbers: Any) -> None:
    assert abs(numbers["differences"]["pa1"]) < 0.005
    assert numbers["clamped"]["A"] > 0.2
    assert numbers["differences"]["pa16"] < -0.003


def test_weights_applied_as_constants_cost_accuracy_most_with_the_sample_reduction(numbers: Any) -> None:
    few = numbers["accuracy"]["few"]
    assert few["C"] < few["D"] < few["A"]
    assert few["C"] < few["CE"]


def test_the_macro_factor_is_a_step_size_unless_it_is_made_a_class_weight(numbers: Any) -> None:
    # with many classes, where alone it departs from one
    assert numbers["step"]["many"] < 0.5 < numbers["step"]["few"] < 1
    assert abs(numbers["differences"]["pa7"]) < 0.01
    assert numbers["differences"]["pa9-step"] > 0.02
    assert numbers["differences"]["pa9-fixed"] > 0.04


def test_controls_have_the_total_weight_that_the_text_states(numbers: Any) -> None:
    total = numbers["total"]["many"]
    assert [total[key] for key in ("CE", "B", "A″", "G″")] == pytest.approx([1] * 4, abs=1e-6)
    assert total["F"] < 0.25 < total["G"] < 0.4 < 1 < total["F″"] < 1.5
