import errno
import json
import logging
import os
import shutil

import numpy as np
import pytest
import torch
from small_runs import NAMES, bits, small_config

from lt_lib.data import normalisation
from lt_lib.runs import RunConfig, Store, StoreError, files, run
from lt_lib.runs.__main__ import main
from lt_lib.runs.checkpoints import pack
from lt_lib.runs.experiment import Checkpoint, execute
from lt_lib.training import evaluate


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run in a store of its own; tests that damage it copy the store."""
    return run(small_config(loss="inverse"), Store(tmp_path_factory.mktemp("store")))


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished.folder.parent, tmp_path / "store")
    return Store(tmp_path / "store")


def never(*_):
    raise AssertionError("the run was computed again")


def test_a_stored_run_is_read_not_computed(finished):
    again = run(finished.config, Store(finished.folder.parent), progress=never)
    assert again.metrics == finished.metrics
    assert again.config == finished.config
    assert {path.name for path in finished.folder.iterdir()} == {*NAMES, "checksums.json"}
    assert not list((finished.folder.parent / ".partial").iterdir())
    assert not list((finished.folder.parent / ".draft").iterdir())


def test_history_and_metrics_have_their_shapes(finished):
    history = finished.history
    assert history["epoch"].tolist() == [2, 4]
    for name in ("train_class_loss", "test_class_loss", "test_class_accuracy", "weights"):
        assert history[name].shape == (2, 10)
    for name in ("lr", "train_rho", "test_rho", "nc1", "nc2", "nc3", "clamped_samples"):
        assert history[name].shape == (2,)
    metrics = finished.metrics
    for part in ("train", "calibration", "test"):
        assert metrics[part]["balanced"] == pytest.approx(np.mean(metrics[part]["per_class"]))
    assert metrics["test"]["per_class"] == pytest.approx(history["test_class_accuracy"][-1].tolist())
    best = metrics["best_epoch_selected_on_test"]["balanced"]
    assert best == pytest.approx(history["test_class_accuracy"].mean(1).max())
    losses = np.array(metrics["test"]["class_loss"])
    assert metrics["test"]["rho"] == pytest.approx(losses.std() / losses.mean())


def test_the_loaded_model_makes_the_stored_predictions(finished):
    split = finished.config.split()
    seen = evaluate(finished.load_model(), split.test, normalisation(split.train))
    share = float((seen.classes == split.test.labels).double().mean())
    assert share == pytest.approx(finished.metrics["test"]["plain"])
    # the long tail as asked for: int(12 * 3 ** (-c / 9))
    assert split.counts.tolist() == [int(12 * 3 ** (-c / 9)) for c in range(10)]


@pytest.mark.parametrize("name", [*NAMES, "checksums.json"])
@pytest.mark.parametrize("how", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_found(copy, finished, name, how):
    path = copy.root / finished.key / name
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-20] if how == "truncated" else content[:30] + b"#" + content[31:])
    assert copy.damage(finished.key)


def test_a_damaged_run_is_set_aside_and_computed_again(copy, finished, caplog):
    path = copy.root / finished.key / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with caplog.at_level(logging.WARNING):
        again = run(finished.config, copy)
    assert bits(again) == bits(finished)
    assert "weights.safetensors is not as it was written" in caplog.text
    assert [p.name for p in (copy.root / ".quarantine").iterdir()] == [f"{finished.key}.0"]


def test_a_damaged_checkpoint_is_set_aside(tmp_path, finished, caplog):
    kept = []
    execute(finished.config, save=lambda checkpoint: kept.append(pack(finished.config, checkpoint)))
    store = Store(tmp_path)
    partial = tmp_path / ".partial" / f"{finished.key}.safetensors"
    partial.parent.mkdir()
    for content in (kept[1][:-5], kept[1][:-1] + bytes([kept[1][-1] ^ 1]), b"", b"nonsense" * 9):
        partial.write_bytes(content)
        assert store.load_checkpoint(finished.key, finished.config) is None
        assert not partial.exists()
    partial.write_bytes(kept[1])
    assert store.load_checkpoint(finished.key, finished.config).state.epoch == 2


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, finished):
    kept: list[Checkpoint] = []
    execute(finished.config, save=kept.append)
    store = Store(tmp_path)
    store.save_checkpoint(finished.key, finished.config, kept[0])
    with pytest.raises(ValueError, match=r"belongs to another run: `seed` is 0 there and 7 here"):
        store.load_checkpoint(finished.key, small_config(seed=7, loss="inverse"))


def refuse(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_store_is_one_sentence_before_any_training(tmp_path, monkeypatch, number):
    monkeypatch.setattr("lt_lib.runs.single.execute", never)
    monkeypatch.setattr(os, "open", refuse(number))
    with pytest.raises(StoreError, match=r"cannot be written .* Set the environment variable LT_RUNS"):
        run(small_config(), Store(tmp_path))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that not even root can write to")
def test_a_store_where_nobody_can_write_is_one_sentence():
    with pytest.raises(StoreError, match="run store /proc/runs"):
        run(small_config(), Store("/proc/runs"))


def test_a_finished_run_is_read_from_a_read_only_store(copy, finished, monkeypatch):
    monkeypatch.setattr(os, "mkdir", refuse(errno.EROFS))
    monkeypatch.setattr("lt_lib.runs.lock._try_lock", never)
    assert run(finished.config, copy, progress=never).metrics == finished.metrics


@pytest.mark.parametrize("victim", ["state", "weights.safetensors", "checksums.json"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(tmp_path, monkeypatch, victim):
    write = files.write_bytes

    def fill(path, content, sync=True):
        if victim in path.name or (victim == "state" and ".partial" in str(path)):
            path.write_bytes(content[: len(content) // 2])
            refuse(errno.ENOSPC)()
        write(path, content, sync)

    for module in ("files", "store"):
        monkeypatch.setattr(f"lt_lib.runs.{module}.write_bytes", fill)
    store = Store(tmp_path)
    with pytest.raises(StoreError, match=r"is full .* Free some space"):
        run(small_config(epochs=2), store)
    assert store.keys() == []
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.parent.name not in (".locks", ".partial")]
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    assert run(small_config(epochs=2), store).metrics["test"]["plain"] > 0


def test_keys_follow_what_matters(finished, tmp_path):
    config = small_config(loss="inverse")
    assert config.key() == finished.key
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))).key() == finished.key
    entries = config.to_dict()
    changed = [
        {"seed": 1},
        {"data_seed": 1},
        {"measure_every": 3},
        {"loss": {"name": "ce"}},
        {"training": {**entries["training"], "precision": "bfloat16"}},
        {"data": {**entries["data"], "imbalance": 4}},
    ]
    keys = {RunConfig.from_dict({**entries, **change}).key() for change in changed}
    assert len(keys | {finished.key}) == len(changed) + 1
    # where the files lie is not what they hold
    moved = RunConfig.from_dict({**entries, "data": {**entries["data"], "root": str(tmp_path)}})
    assert moved.key() == finished.key


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"data": {"imbalence": 3}}, "Did you mean `imbalance`"),
        ({"loss": {"gamma": 2}}, '`loss` needs an entry "name"'),
        ({"loss": {"name": "ce", "weights": {1, 2}}}, "`loss` must hold numbers"),
        ({"loss": {"name": "ce", "x": float("nan")}}, "`loss` must hold numbers"),
        ({"seed": -1}, "`seed` must be"),
        ({"training": {"threads": None}}, "`threads` of a stored run"),
    ],
)
def test_bad_configurations_are_refused(entries, sentence):
    with pytest.raises(ValueError, match=sentence):
        RunConfig.from_dict(entries)


def test_counts_stand_alone():
    with pytest.raises(ValueError, match="`counts` stands alone"):
        RunConfig(data={"counts": [5] * 10, "largest": 5}).split()
    with pytest.raises(ValueError, match="`imbalance` needs `largest`"):
        RunConfig(data={"imbalance": 5}).split()
    assert RunConfig(data={"counts": [5] * 10}).split().counts.tolist() == [5] * 10


def test_the_command_lists_shows_and_verifies(copy, finished, capsys):
    where = ["--store", str(copy.root)]
    assert main(["list", *where]) == 0
    assert finished.key in capsys.readouterr().out
    assert main(["show", finished.key[:8], *where]) == 0
    assert '"balanced"' in capsys.readouterr().out
    assert main(["verify", *where]) == 0
    (copy.root / finished.key / "history.csv").write_text("x")
    assert main(["verify", *where]) == 1
    assert "history.csv is not as it was written" in capsys.readouterr().out


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_reading_moves_nothing(copy, finished, capsys):
    (copy.root / "Documents").mkdir()
    (copy.root.parent / "victim").mkdir()
    (copy.root / finished.key / "history.csv").write_text("x")
    before = tree(copy.root.parent)
    for command in ("list", "verify"):
        main([command, "--store", str(copy.root)])
    main(["show", finished.key, "--store", str(copy.root)])
    said = capsys.readouterr().out
    assert said.count(f"{finished.key}: damaged (history.csv is not as it was written)") == 1
    assert "Documents" not in said
    assert copy.get(finished.key) is None
    for name in ("../victim", "", "Documents", finished.key + "\n", None):
        for ask in (copy.get, copy.damage, copy.make_room):
            with pytest.raises(ValueError, match="`key` must be 32 hex digits"):
                ask(name)
    assert tree(copy.root.parent) == before


def test_the_command_says_what_is_not_there(copy, finished, capsys):
    assert main(["show", "0000", "--store", str(copy.root)]) == 1
    assert "begins with `0000`" in capsys.readouterr().out
    assert main(["show", "--store", str(copy.root)]) == 1
    assert "`show` needs a key" in capsys.readouterr().out
    for command in ("list", "verify"):
        assert main([command, "--store", str(finished.folder / "config.json")]) == 1
        assert "is a file" in capsys.readouterr().out


def test_bfloat16_runs(tmp_path):
    half = run(small_config(precision="bfloat16", memory_format="channels_last", epochs=2), Store(tmp_path))
    assert half.weights()["conv.weight"].dtype == torch.float32
    assert np.isfinite(half.history["train_class_loss"]).all()
