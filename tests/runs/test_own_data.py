"""From a faulty image folder to advice in one short script, and the configuration behind it."""

import json
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lt_lib.data import load
from lt_lib.runs import Store, budget, run, timing
from lt_lib.runs.budget import Cost, Timing
from lt_lib.runs.card import load_card
from lt_lib.runs.own import own_config

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"drei": 24, "null": 40, "zwölf": 1}


@pytest.fixture
def folder(tmp_path):
    """Digits of two kinds as files, a class of one image, a copy, and a file that is none."""
    source, base = load("digits"), tmp_path / "images"
    for label, (name, count) in zip((3, 0, 8), COUNTS.items(), strict=True):
        (base / name).mkdir(parents=True)
        pixels = source.train.images[source.train.labels == label][:count, 0].numpy()
        for i, image in enumerate(pixels):
            Image.fromarray(image).save(base / name / f"{i}.png")
    (base / "null" / "copy.png").write_bytes((base / "null" / "0.png").read_bytes())
    (base / "null" / "torn.png").write_bytes((base / "null" / "0.png").read_bytes()[:60])
    return base


def test_faults_are_left_out_and_told_and_copies_stay_together(folder):
    split = own_config(f"folder:{folder}", size=8).split()
    assert split.classes == 3
    assert "torn.png" in split.note
    assert "zwölf" in split.note
    assert len(split.train) + len(split.test) + len(split.calibration) == 24 + 41 + 1
    assert split.test.counts(3).tolist()[2] == 0
    places = [part for part in (split.train, split.test, split.calibration) if 24 in part.index.tolist()]
    (place,) = places  # the first image of the second class, and its copy, which comes last
    assert place.images.flatten(1).unique(dim=0).shape[0] == len(place) - 1


def test_a_class_without_held_out_images_is_measured_as_absent(folder, tmp_path):
    config = own_config(f"folder:{folder}", size=8, net={"width": 2}, training={"epochs": 3, "device": "cpu"})
    found = run(config, Store(tmp_path / "runs"))
    test = found.metrics["test"]
    assert test["per_class"][2] is None
    assert test["balanced"] == pytest.approx(np.mean(test["per_class"][:2]))
    assert found.metrics["train"]["per_class"][2] is not None


def test_keys_of_other_data_do_not_know_the_newer_entries():
    plain = own_config("digits", parts="split", damaged="refuse")
    assert plain.key() != own_config("digits", damaged="refuse").key()
    assert json.dumps(plain.to_dict()) == json.dumps(type(plain).from_dict(plain.to_dict()).to_dict())
    with pytest.raises(ValueError, match="must be one of partition, split"):
        own_config("digits", parts="halves")
    with pytest.raises(ValueError, match="Did you mean `calibration`"):
        own_config("digits", calibrations=0.1)
    with pytest.raises(ValueError, match=r"`name` must be one of .*; found `fodler:x`"):
        own_config("fodler:x")
    for size in (0, "64", 1.5, 10**6):
        with pytest.raises(ValueError, match="`size` must be a whole number from 1 to 8192"):
            own_config("folder:x", size)


def test_the_script_of_the_guide_has_fifteen_lines_and_gives_advice(folder, tmp_path, monkeypatch, capsys):
    file = ROOT / "examples" / "your_data.py"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 15
    costs = {name: Cost(0.01, 0.01) for name in ("CE", "balanced softmax")}
    monkeypatch.setattr(timing, "measure_costs", lambda base, methods: Timing(costs, steps=1000))
    monkeypatch.setattr(budget, "plan", partial(budget.plan, seeds=2, epochs=3, workers=1))
    monkeypatch.setattr("sys.argv", [str(file), f"folder:{folder}", "0.02", "8"])
    monkeypatch.setattr("sys.tracebacklimit", 1000, raising=False)  # the script sets it
    monkeypatch.setenv("LT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), run_name="__main__")
    printed = capsys.readouterr().out
    assert "**Plan** for 0.02 minutes" in printed
    assert "| balanced softmax |" in printed
    assert "**Keep CE**" in printed or "**Use " in printed
    guess = load_card(tmp_path / "my-model").predict(folder / "drei" / "0.png")
    assert guess.name in COUNTS
