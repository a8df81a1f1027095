"""The data entries of a run's configuration: files, published draws, and what becomes stale."""

import numpy as np
import pytest
from PIL import Image

from lt_lib.data import ImageFiles, exponential_counts, load, long_tail
from lt_lib.runs import RunConfig


def write_tree(folder, per_class=6):
    rng = np.random.default_rng(0)
    for c in ("a", "b"):
        (folder / c).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(folder / c / f"{i}.png")


def config(folder, data_seed=0, **data):
    data = {"name": f"folder:{folder}", "test": 2, "size": 8, **data}
    return RunConfig(data=data, training={"threads": 1, "epochs": 1}, data_seed=data_seed)


def test_size_and_limit_reach_the_source_and_the_key(tmp_path):
    write_tree(tmp_path)
    base = config(tmp_path)
    assert base.split().train.images.shape == (8, 3, 8, 8)
    on_disk = config(tmp_path, memory_limit=0)
    assert isinstance(on_disk.split().train.images, ImageFiles)
    assert len({c.key() for c in (base, on_disk, config(tmp_path, size=7))}) == 3
    assert RunConfig.from_dict(base.to_dict()) == base


@pytest.mark.parametrize("limit", [None, 0])
def test_a_folder_that_changed_is_read_again(tmp_path, limit):
    write_tree(tmp_path)
    keys = [config(tmp_path, memory_limit=limit).key()]
    (tmp_path / "a" / "5.png").unlink()
    keys.append(config(tmp_path, memory_limit=limit).key())
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "a" / "5.png")
    keys.append(config(tmp_path, memory_limit=limit).key())
    assert len(set(keys)) == 3


def test_the_published_draw_does_not_follow_the_data_seed(tmp_path):
    labels, pixels = np.arange(90) % 3, np.zeros((90, 2, 2), np.uint8)
    file = tmp_path / "mine.npz"
    np.savez(file, train_images=pixels, train_labels=labels, test_images=pixels[:9], test_labels=labels[:9])
    data = {"name": f"npz:{file}", "largest": 20, "imbalance": 4}
    expected = long_tail(load(data["name"]), exponential_counts(20, 4, 3), seed=0, draw="cao2019").train.index
    drawn = {
        (draw, seed): RunConfig(data=data | {"draw": draw}, training={"threads": 1}, data_seed=seed).split()
        for draw in ("cao2019", "generator")
        for seed in (0, 1)
    }
    index = {key: parts.train.index.tolist() for key, parts in drawn.items()}
    assert index["cao2019", 0] == index["cao2019", 1] == expected.tolist()
    assert len({tuple(value) for value in index.values()}) == 3


def test_the_published_draw_leaves_no_calibration_data():
    data = {"name": "digits", "largest": 50, "imbalance": 10, "draw": "cao2019", "calibration": 5}
    with pytest.raises(
        ValueError, match=r"`draw` = cao2019 repeats .*`calibration` = 5\. Set `calibration` to 0"
    ):
        RunConfig(data=data, training={"threads": 1}).split()
    with pytest.raises(ValueError, match="`draw` must be one of cao2019, generator; found `cao`"):
        RunConfig(data={"draw": "cao"}, training={"threads": 1})
