"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "07_combined.json"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_every_cell_of_every_host_learns(numbers: Any) -> None:
    chance = 1 / len(numbers["counts"])
    worst = {host: min(cells.values()) for host, cells in numbers["hosts"].items()}
    assert min(worst.values()) > 2.5 * chance, worst


def test_effects_are_those_of_the_cells(numbers: Any) -> None:
    for host, cells in numbers["hosts"].items():
        neither, loss, rate, both = (cells[cell] for cell in ("host", "+Loss", "+LR", "+Loss+LR"))
        found = numbers["effects"][host]
        assert found["both"] == pytest.approx(both - neither)
        assert found["interaction"] == pytest.approx(both - loss - rate + neither)
        assert found["loss"] == pytest.approx((loss - neither + both - rate) / 2)
        assert found["loss"] + found["rate"] == pytest.approx(found["both"])


def test_a_before_and_after_picture_credits_the_switch_with_what_the_drop_does(numbers: Any) -> None:
    parts = numbers["confounded"]
    assert parts["naive"] == pytest.approx(parts["switch-drop"])  # one training up to the switch
    assert parts["pa14"] > parts["naive"]


def test_two_stages_gain_nothing_by_reweighting_instead_of_balanced_drawing(numbers: Any) -> None:
    assert numbers["effects"]["cRT"]["loss"] < 0.01


def test_views_are_what_hosts_cost(numbers: Any) -> None:
    forwarded = {host: cost["forwarded"] for host, cost in numbers["costs"].items()}
    assert forwarded == {"CE": 1, "GLMC": 2, "ETF-DR": 1, "BCL": 3, "cRT": 1}
