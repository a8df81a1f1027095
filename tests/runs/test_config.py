import json

import numpy as np
import pytest

from lt_lib.runs import RunConfig, Store, run, run_many
from lt_lib.runs.experiment import execute


def write_archive(path, seed=0, classes=3, n=30):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (n, 6, 6), dtype=np.uint8)
    labels = np.arange(n) % classes
    test = {"test_images": images[: 2 * classes], "test_labels": labels[: 2 * classes]}
    np.savez(path, train_images=images, train_labels=labels, **test)


def own(name, seed=0, **data):
    training = {"epochs": 1, "batch": 16, "device": "cpu"}
    return RunConfig(data={"name": f"npz:{name}", **data}, net={"width": 2}, training=training, seed=seed)


@pytest.mark.parametrize("where", ["absolute", "root", "current"])
def test_a_rewritten_archive_is_another_run(tmp_path, monkeypatch, where):
    path = tmp_path / "mine.npz"
    monkeypatch.chdir(tmp_path)
    data = {
        "absolute": (str(path), {}),
        "root": ("mine.npz", {"root": str(tmp_path)}),
        "current": (path.name, {}),
    }
    name, more = data[where]
    keys = []
    for seed in range(2):
        write_archive(path, seed)
        keys.append(own(name, **more).key())
        assert own(name, **more).split() is own(name, **more).split()  # read once
    assert keys[0] != keys[1]


def test_processes_train_on_the_rewritten_archive(tmp_path):
    path, store = tmp_path / "mine.npz", Store(tmp_path / "runs")
    write_archive(path)
    first = run(own(path), store)
    write_archive(path, seed=1)
    runs = run_many([own(path, seed) for seed in range(2)], store, workers=2)
    assert first.key not in [found.key for found in runs]


def test_one_class_is_refused_before_training(tmp_path, monkeypatch):
    write_archive(tmp_path / "one.npz", classes=1)
    monkeypatch.setattr("lt_lib.runs.experiment.train", None)
    with pytest.raises(ValueError, match=r"(two classes or more|at least 2).*; found 1"):
        execute(own(tmp_path / "one.npz"))


def test_names_stand_for_mappings():
    assert RunConfig(loss="ce", data="digits") == RunConfig()
    for entries, sentence in (
        ({"net": 5}, "`net` must be a mapping"),
        ({"net": "resnet"}, "`net` must be a mapping"),
        ({"loss": None}, "`loss` must be a name or a mapping"),
        ({"data": ["digits"]}, "`data` must be a name or a mapping"),
    ):
        with pytest.raises(ValueError, match=sentence):
            RunConfig(**entries)


def test_equal_numbers_are_one_run():
    def config(number, lr=1, **more):
        return RunConfig(loss={"name": "inverse", "alpha": number}, training={"lr": lr}, **more)

    assert config(0).key() == config(0.0, 1.0).key() == config(-0.0).key() == config(np.float32(0)).key()
    assert len({config(0).key(), config(0.5).key(), config(False).key(), config(None).key()}) == 4
    numpy = config(0, seed=np.int64(3), measure_every=np.int32(2))
    assert numpy.key() == config(0, seed=3, measure_every=2).key()
    assert RunConfig.from_dict(json.loads(json.dumps(numpy.to_dict()))) == numpy


def test_processes_that_load_images_make_no_other_run():
    assert RunConfig(training={"workers": 3}).key() == RunConfig().key()
    assert RunConfig(training={"views": "three"}).key() != RunConfig().key()


def test_the_seed_of_the_data_has_the_limit_of_the_split():
    RunConfig(data_seed=2**32 - 1).split()
    with pytest.raises(ValueError, match="`data_seed` must be a whole number from 0 to 4294967295"):
        RunConfig(data_seed=2**32)
    assert RunConfig(seed=2**63 - 1).seed == 2**63 - 1
