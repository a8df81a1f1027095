import csv
import json

import numpy as np
import pytest
import torch

from lt_lib.profiles import load
from lt_lib.runs import StoreError, config_from_profile, publish, save_figure_data


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LT_HOME", str(tmp_path))
    monkeypatch.delenv("LT_PROFILE", raising=False)
    return tmp_path


def test_numbers_are_published_as_json(home, monkeypatch):
    publish(
        "03_x", {"a": np.float64(0.5), "b": torch.tensor([1, 2]), "c": float("nan"), "d": {"e": (True, "x")}}
    )
    path = home / "build" / "digits" / "published" / "03_x.json"
    assert json.loads(path.read_text()) == {"a": 0.5, "b": [1, 2], "c": None, "d": {"e": [True, "x"]}}
    monkeypatch.setenv("LT_PROFILE", "fashion")
    assert publish("03_x", {}) == home / "build" / "fashion" / "published" / "03_x.json"
    assert [p.name for p in path.parent.iterdir()] == ["03_x.json"]


def test_figure_data_are_columns(home):
    path = save_figure_data(
        "03_x", "fig-rho", epoch=np.arange(3), rho=torch.tensor([0.1, 0.25], dtype=torch.float64)
    )
    assert path == home / "build" / "digits" / "figures" / "03_x" / "fig-rho.csv"
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [["epoch", "rho"], ["0", "0.1"], ["1", "0.25"], ["2", ""]]


def test_bad_names_and_values_are_refused(home):
    with pytest.raises(ValueError, match="`notebook` must be letters"):
        publish("../x", {})
    for name in (None, "x\n", ""):
        with pytest.raises(ValueError, match="`notebook` must be letters"):
            publish(name, {})
    with pytest.raises(ValueError, match="`numbers` must be a mapping"):
        publish("x", None)
    with pytest.raises(ValueError, match="found object"):
        publish("x", {"a": object()})
    with pytest.raises(ValueError, match="at least one column"):
        save_figure_data("x", "fig")
    with pytest.raises(ValueError, match=r"`a` must be one-dimensional; found shape \(2, 2\)"):
        save_figure_data("x", "fig", a=np.ones((2, 2)))
    assert not list(home.rglob("*.json"))


def test_a_folder_that_cannot_be_written_is_one_sentence_of_its_own(home):
    (home / "build").write_text("a file in the way")
    for write in (lambda: publish("x", {}), lambda: save_figure_data("x", "fig", a=[1])):
        with pytest.raises(
            StoreError, match=r"published numbers and figures cannot be written .* LT_HOME"
        ) as found:
            write()
        assert "LT_RUNS" not in str(found.value)


def test_a_profile_gives_the_configuration_of_a_run():
    profile = load("digits")
    config = config_from_profile(profile, "ce", 3, imbalance=20, epochs=5, net={"width": 4}, measure_every=1)
    assert config.seed == 3
    assert config.loss == {"name": "ce"}
    assert config.data["imbalance"] == 20
    assert config.data["largest"] == profile.largest
    assert config.net["width"] == 4
    assert config.net["depth"] == profile.net.depth
    assert (config.training.epochs, config.training.batch) == (5, profile.training.batch)
    assert config.training.memory_format == profile.memory_format
    assert config.measure_every == 1
    with pytest.raises(ValueError, match=r"`over` knows .*; found `imbalence`"):
        config_from_profile(profile, "ce", 0, imbalence=3)
