import numpy as np
import pytest

from lt_lib.runs import RunConfig, Store, run, run_many


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
