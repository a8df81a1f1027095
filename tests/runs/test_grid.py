"""`python -m lt_lib.runs sweep`: the runs that a file or arguments stand for, and what the command says."""

import itertools
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from small_runs import small_config

from lt_lib.runs import ClusterError, RunsFailed, Store, run
from lt_lib.runs.__main__ import main
from lt_lib.runs.grid import grid, read_grid

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster" / "sweep.yaml"
sweeping = import_module("lt_lib.runs.sweep")  # `runs.sweep` is the function


@pytest.fixture
def asked(monkeypatch):
    """What the command asks of `sweep`, which fails its first run."""
    calls = []

    def pretend(configs, client, store, workers, progress):
        calls.append((configs, client, store.root, workers))
        progress(1, len(configs), configs[0])
        raise RunsFailed([(configs[0], "it was tired")], len(configs))

    monkeypatch.setattr(sweeping, "sweep", pretend)
    return calls


def settings(configs):
    return {(c.loss["name"], c.data["imbalance"], c.seed) for c in configs}


def test_arguments_are_methods_times_imbalances_times_seeds(asked, tmp_path, capsys):
    words = ["--methods", "CE", "focal", "--imbalances", "5", "10", "--seeds", "2"]
    where = ["--store", str(tmp_path), "--scheduler", "tcp://127.0.0.1:1"]
    assert main(["sweep", *words, *where]) == 1
    shown = capsys.readouterr()
    assert "1 of 8 runs failed" in shown.out
    assert "it was tired" in shown.out
    assert "1/8" in shown.err  # the progress bar
    ((configs, *rest),) = asked
    assert rest == ["tcp://127.0.0.1:1", tmp_path, 2]
    assert settings(configs) == set(itertools.product(("ce", "focal"), (5, 10), (0, 1)))
    assert len(configs) == 8


def test_a_file_says_the_same_and_arguments_replace_its_entries(asked, tmp_path):
    entries = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    configs = grid(read_grid(EXAMPLE))
    assert len(configs) == 5 * 2 * 2
    assert {c.training.epochs for c in configs} == {entries["over"]["epochs"]}
    assert {"name": "inverse", "preset": "as_written", "alpha": 0.5} in [c.loss for c in configs]
    main(["sweep", str(EXAMPLE), "--seeds", "1", "--imbalances", "7", "--store", str(tmp_path)])
    assert settings(asked[0][0]) == set(
        itertools.product(("ce", "balanced_softmax", "inverse", "focal"), (7,), (0,))
    )


def test_runs_may_be_written_out_in_full():
    config = small_config(3)
    assert grid({"configs": [config.to_dict()]}) == [config]
    assert grid({"methods": ["CE"], "configs": [config.to_dict()], "seeds": [5]})[1:] == [config]
    assert [c.seed for c in grid({"seeds": [5, 9]})] == [5, 9]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("methods: []", "`methods` of a sweep must be a list that is not empty; found []"),
        ("methods: CE", "`methods` of a sweep must be a list"),
        ("methods: [magic]", "magic"),
        ("method: [CE]", "Did you mean `methods`?"),
        ("losses: [magic]\nseeds: 0", "`seeds` must be a whole number from 1 to 1000; found 0"),
        ("seeds: [-1]", "`seeds` must be a whole number"),
        ("imbalances: []", "`imbalances` of a sweep must be a list"),
        ("imbalances: [.nan]", "`data` must hold numbers"),
        ("profile: nowhere", "nowhere"),
        ("over: {seed: 3}", "`over` cannot set `seed`: the sweep's own entry `seeds` does"),
        ("over: {epoch: 3}", "epoch"),
        ("over: 3", "`over` of a sweep must be a mapping"),
        ("configs: [{seed: 1.5}]", "Entry 1 of `configs` is no run: `seed`"),
        ("configs: [3]", "Entry 1 of `configs` is no run"),
        ("configs: [{training: 3}]", "Entry 1 of `configs` is no run"),
        ("configs: [{}]\nseeds: 3", "`seeds` says nothing of runs"),
        ("seeds: 1\nseeds: 2", "`seeds` stands twice"),
        ("[1, 2]", "must map names to settings"),
        ("", "must map names to settings"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_bad_file_is_one_sentence_before_anything_starts(text, sentence, asked, tmp_path, capsys):
    file = tmp_path / "sweep.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["sweep", str(file), "--store", str(tmp_path / "runs")]) == 1
    shown = capsys.readouterr()
    assert sentence in shown.out
    assert shown.err == ""
    assert not asked
    assert not (tmp_path / "runs").exists()


def test_files_that_cannot_be_read_are_named(tmp_path, capsys):
    for file in (tmp_path / "none.yaml", tmp_path):
        assert main(["sweep", str(file)]) == 1
        assert f"The sweep's file {file} cannot be read" in capsys.readouterr().out


def test_what_the_store_has_is_said_and_not_trained(tmp_path, capsys):
    file, store, config = tmp_path / "sweep.yaml", Store(tmp_path / "runs"), small_config(epochs=1)
    file.write_text(yaml.safe_dump({"configs": [config.to_dict()] * 2}), encoding="utf-8")
    first = run(config, store)
    assert main(["sweep", str(file), "--store", str(store.root)]) == 0
    shown = capsys.readouterr()
    assert shown.out.count(f"{first.key}: {first.config.describe()}: balanced accuracy 0.") == 2
    assert "2/2" in shown.err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ClusterError("No cluster."), 1, "No cluster.\n"),
        (FileNotFoundError("There is no such data."), 1, "There is no such data.\n"),
        (KeyboardInterrupt(), 130, "Stopped. Finished runs are stored"),
    ],
)
def test_whatever_ends_a_sweep_is_a_sentence_and_a_status(error, status, said, monkeypatch, tmp_path, capsys):
    def failing(*arguments):
        raise error

    monkeypatch.setattr(sweeping, "sweep", failing)
    assert main(["sweep", "--store", str(tmp_path)]) == status
    assert capsys.readouterr().out.startswith(said)
