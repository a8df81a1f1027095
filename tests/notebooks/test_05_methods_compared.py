"""What the chapter's conclusions rest on, asked of the numbers that its last run published."""

import csv
import json
import re
from typing import Any

import pytest

from lt_lib.runs import read_runs
from pipeline.layout import ROOT

NAME = "05_methods_compared"
PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / f"{NAME}.json"
RESULTS = ROOT / "book" / "results"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_every_method_learns_and_cross_entropy_far_above_chance(numbers: Any) -> None:
    for accuracies in numbers["balanced"].values():
        assert min(accuracies.values()) > 0.2
    assert numbers["balanced"]["5"]["CE"] > 0.85
    assert numbers["balanced"]["20"]["CE"] > 0.5


def test_cross_entropy_suffers_from_imbalance_and_balanced_softmax_helps(numbers: Any) -> None:
    by_imbalance = [numbers["balanced"][i] for i in ("5", "10", "20")]
    ce = [accuracies["CE"] for accuracies in by_imbalance]
    assert ce == sorted(ce, reverse=True)
    assert all(a["balanced softmax"] > a["CE"] for a in by_imbalance[1:])


def test_equal_class_losses_are_no_sign_of_a_good_classifier(numbers: Any) -> None:
    middle, rho = numbers["balanced"]["10"], numbers["rho"]["train"]
    least, best = min(rho, key=rho.get), max(middle, key=middle.get)
    assert least != best
    assert middle[least] < middle["CE"]


def test_costly_methods_stand_at_the_middle_imbalance_only(numbers: Any) -> None:
    more = set(numbers["balanced"]["10"]) - set(numbers["balanced"]["5"])
    assert more == {"GLMC", "BCL", "meta-learned weights", "CE, balanced images"}
    assert numbers["control"] * 10 <= sum(numbers["counts"])


def test_published_values_name_their_source_and_methods_of_the_page() -> None:
    page = (ROOT / "notebooks" / f"{NAME}.md").read_text(encoding="utf-8")
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    with (RESULTS / "literature.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["comparable"] == "yes" for row in rows) == 10
    for row in rows:
        assert f'"{row["method"].removeprefix("CE + ")}"' in page, row["method"]
        assert re.search(rf"\{{{row['source']},", bibliography)
        assert all(20 < float(row[key]) < 100 for key in row if key.startswith("cifar"))


def test_committed_runs_are_complete() -> None:
    path = RESULTS / "fashion" / f"{NAME}.runs.csv"
    if not path.exists():
        pytest.skip("no table of runs on Fashion-MNIST-LT is committed")
    rows = [row for row in read_runs(path) if row["imbalance"] == 100]
    assert {row["data"] for row in rows} == {"fashion_mnist"}
    seeds: dict[str, list[int]] = {}
    for row in rows:
        method = [row["loss"], row["net"], row["after"], row["training"]["sampling"]]
        seeds.setdefault(json.dumps(method, sort_keys=True), []).append(row["seed"])
    assert {tuple(sorted(found)) for found in seeds.values()} == {(0, 1, 2)}
    # the three methods that forward a batch more than once are not in the committed table
    costly = {"glmc", "bcl", "meta"}
    assert len(seeds) == 17 + len(costly & {row["loss"]["name"] for row in rows})
    assert min(row["test_balanced"] for row in rows) > 0.1
    assert all(max(row["counts"]) == 1000 and min(row["counts"]) == 10 for row in rows)
