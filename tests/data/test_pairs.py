"""Composed pairs: a hundred classes whose parts share no single image."""

import dataclasses

import numpy as np
import pytest
import torch

from lt_lib.data import exponential_counts, load, long_tail, source_from_arrays, split


@pytest.fixture(scope="module")
def pairs():
    return load("digit_pairs")


@pytest.fixture(scope="module")
def parts(pairs):
    return split(pairs, calibration=20, test=0.25, seed=0)


def test_no_single_digit_serves_two_parts(pairs, parts):
    singles = pairs.singles.train.images
    used = {}
    for name, part in parts.parts().items():
        left, right = pairs.singles_of(part)
        # the index is proved by the pixels: both halves are the very images that it names
        assert torch.equal(part.images[..., :8], singles[left])
        assert torch.equal(part.images[..., 8:], singles[right])
        used[name] = set(left.tolist()) | set(right.tolist())
    assert list(used) == ["train", "calibration", "test"]
    assert not used["train"] & used["calibration"]
    assert not used["train"] & used["test"]
    assert not used["calibration"] & used["test"]
    assert set().union(*used.values()) == set(range(1797))  # and none is wasted


def test_labels_are_ten_times_left_plus_right(pairs, parts):
    single = pairs.singles.train.labels
    for part in parts.parts().values():
        left, right = pairs.singles_of(part)
        assert torch.equal(part.labels, 10 * single[left] + single[right])
    assert parts.classes == pairs.classes == 100
    assert parts.class_names[37] == "3|7"
    assert len(set(parts.class_names)) == 100


def test_each_class_holds_the_smaller_number_of_its_singles(pairs, parts):
    singles = split(pairs.singles, calibration=20, test=0.25, seed=0)
    for name, part in parts.parts().items():
        n = singles.parts()[name].counts(10)
        expected = torch.minimum(n[:, None], n[None, :]).flatten()
        assert torch.equal(part.counts(100), expected)
    assert parts.calibration.counts(100).tolist() == [20] * 100
    assert torch.equal(pairs.counts.reshape(10, 10).diagonal(), pairs.singles.counts)


def test_no_image_stands_beside_itself_and_no_pair_comes_twice(pairs, parts):
    for part in parts.parts().values():
        left, right = pairs.singles_of(part)
        assert not bool((left == right).any())
        assert len(torch.unique(part.index)) == len(part)


def test_each_single_serves_a_class_once_on_a_side(pairs, parts):
    left, right = pairs.singles_of(parts.train)
    for side in (left, right):
        assert len(torch.unique(torch.stack([side, parts.train.labels]), dim=1)[0]) == len(side)


def test_the_seed_decides(pairs, parts):
    assert split(pairs, calibration=20, test=0.25, seed=0).fingerprint() == parts.fingerprint()
    assert split(pairs, calibration=20, test=0.25, seed=1).fingerprint() != parts.fingerprint()


def test_a_long_tail_of_a_hundred_classes(parts):
    counts = exponential_counts(100, 20, 100)
    assert long_tail(parts, counts, seed=0).counts.tolist() == counts.tolist()


def test_an_unsplit_source_has_no_long_tail(pairs):
    with pytest.raises(
        ValueError, match=r"`digit_pairs` is composed when it is split.*long_tail\(split\(source\)"
    ):
        long_tail(pairs, [1] * 100, seed=0)


def test_a_limit_caps_each_class(pairs):
    small = split(dataclasses.replace(pairs, limit=7), test=10, seed=0)
    assert small.counts.tolist() == [7] * 100
    assert small.test.counts(100).tolist() == [7] * 100


def test_one_single_in_a_part_is_refused(pairs):
    with pytest.raises(ValueError, match=r"Class 0 has 1 single images in a part, but pairs need at least 2"):
        split(pairs, calibration=1)


def test_an_own_test_part_gives_the_test_pairs(pairs):
    labels = np.repeat(np.arange(10), 6)
    train, test = (np.random.default_rng(s).integers(0, 256, (60, 4, 4), dtype=np.uint8) for s in (0, 1))
    singles = source_from_arrays("toy", train, labels, test, labels)
    source = dataclasses.replace(pairs, singles=singles)
    parts = split(source, calibration=2, seed=0)
    left, right = source.singles_of(parts.test, "test")
    assert torch.equal(
        parts.test.images, torch.cat([singles.test.images[left], singles.test.images[right]], 3)
    )
    assert (parts.counts.tolist(), parts.test.counts(100).tolist()) == ([4] * 100, [6] * 100)
