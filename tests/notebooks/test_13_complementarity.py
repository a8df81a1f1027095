"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "13_complementarity.json"
METHODS = ("CE", "focal", "class-balanced", "inverse, released", "balanced softmax")


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", ["balanced", "sigma"])
@pytest.mark.parametrize("method", METHODS)
def test_contrasts_obey_their_identities(numbers: Any, method: str, number: str) -> None:
    found = numbers[f"contrasts {method}: {number}"]
    reference = numbers[f"contrasts CE: {number}"]
    assert found["J"] == pytest.approx(found["G|b"] - found["G"], abs=1e-12)
    assert found["I"] == pytest.approx(found["G"] - reference["G"], abs=1e-12)
    if number == "balanced":
        cells = {key: numbers["cells"][f"{method}: {key}"] for key in ("00", "10", "01", "11")}
        assert found["G"] == pytest.approx(cells["01"] - cells["00"], abs=1e-12)
        assert found["G|b"] == pytest.approx(cells["11"] - cells["10"], abs=1e-12)


def test_a_bias_fit_undoes_any_earlier_bias(numbers: Any) -> None:
    assert numbers["idle"] < 1e-5


def test_projected_fine_tuning_keeps_more_of_the_displacement_than_plain(numbers: Any) -> None:
    plain, projected = (numbers[f"left {kind}"] for kind in ("plain", "projected"))
    assert plain < projected
    assert projected > 0.8


def test_the_bias_fit_gains_far_more_than_surgery_where_priors_are_not_accounted_for(numbers: Any) -> None:
    for method in METHODS[:4]:
        found = numbers[f"contrasts {method}: balanced"]
        assert found["bias"] > found["G"] + 0.03
        assert found["G|b"] < 0.03


def test_logit_adjustment_belongs_on_logits(numbers: Any) -> None:
    on = {k: numbers[f"isic CE: logit adjustment on {k}"] for k in ("logits", "probabilities")}
    assert on["logits"]["balanced"] > numbers["isic CE: nothing"]["balanced"] + 0.03
    assert on["logits"]["balanced"] > on["probabilities"]["balanced"] + 0.03


def test_the_isic_shaped_set_has_the_shares_of_its_table(numbers: Any) -> None:
    assert numbers["isic_counts"] == [35, 100, 26, 7, 20, 5, 5, 5]


def test_training_on_erodes_the_fitted_bias_and_leaves_a_good_part(numbers: Any) -> None:
    erosion = numbers["differences"]["bias fit, fine-tuned: gain of accuracy against before"]
    assert erosion < 0.01
    assert numbers["kept"]["bias fit, fine-tuned"] > 0.03


def test_the_mean_of_the_five_is_the_mean(numbers: Any) -> None:
    found = numbers["differences"]
    statement = "{}: surgery adds balanced accuracy"
    mean = sum(found[statement.format(m)] for m in METHODS) / len(METHODS)
    assert found[statement.format("mean of the five")] == pytest.approx(mean, abs=1e-12)
