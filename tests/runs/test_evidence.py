"""The table of runs that can be committed: complete, and read back as it was written."""

import csv

import pytest
from small_runs import small_config

from lt_lib.runs import RunConfig, Store, publish_runs, read_runs, run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LT_HOME", str(tmp_path))
    monkeypatch.delenv("LT_PROFILE", raising=False)
    return tmp_path


def test_a_row_holds_configuration_and_results(home):
    found = run(small_config(epochs=2), Store(home / "runs"))
    path = publish_runs("05_x", [found, found])
    assert path == home / "build" / "digits" / "published" / "05_x.runs.csv"
    first, second = read_runs(path)
    assert first == second
    assert first["key"] == found.key
    assert first["loss"] == {"name": "ce"}
    assert first["training"]["epochs"] == 2
    assert first["seed"] == 0
    assert first["counts"] == found.config.split().counts.tolist()
    assert first["test_balanced"] == found.metrics["test"]["balanced"]
    assert first["test_per_class"] == found.metrics["test"]["per_class"]
    assert first["nc2"] == found.metrics["collapse"]["nc2"]
    assert first["seconds"] == found.made["seconds"]
    assert first["commit"] == ""  # a folder without a repository


def test_runs_with_and_without_a_later_edit_share_a_table(home):
    plain, store = small_config(epochs=1), Store(home / "runs")
    edited = RunConfig(**{**plain.to_dict(), "after": "logit_adjustment"})
    first, second = read_runs(publish_runs("05_x", [run(plain, store), run(edited, store)]))
    assert first["after"] is None
    assert second["after"] == {"name": "logit_adjustment", "tau": 1.0}


def test_texts_that_look_like_numbers_stay_texts(tmp_path):
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["commit", "seed", "imbalance"], ["123456789012", "3", ""]])
    assert read_runs(path) == [{"commit": "123456789012", "seed": 3, "imbalance": None}]


def test_no_run_is_refused(home):
    with pytest.raises(ValueError, match="`runs` must hold at least one run"):
        publish_runs("05_x", [])
