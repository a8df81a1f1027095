"""Splits and long tails: disjoint, complete, exact, by a data seed of their own."""

import random
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.data import exponential_counts, load, long_tail, source_from_arrays, split


def toy(labels, test=None):
    """A source whose pixels are the image's number, so that images can be followed."""

    def pixels(n):
        return np.arange(n, dtype=np.uint32).view(np.uint8).reshape(n, 2, 2)

    more = {} if test is None else {"test_images": pixels(len(test)), "test_labels": np.array(test)}
    return source_from_arrays("toy", pixels(len(labels)), np.array(labels), **more)


def numbers(part):
    return np.ascontiguousarray(part.images.numpy()).reshape(len(part), 4).view(np.uint32).ravel().tolist()


def positions(parts):
    return {name: set(part.index.tolist()) for name, part in parts.parts().items()}


labels_lists = st.lists(st.integers(0, 4), min_size=40, max_size=120).filter(
    lambda y: min(np.bincount(y, minlength=5)) >= 5
)
seeds = st.integers(0, 1000)


# ---------------------------------------------------------------- split


@settings(max_examples=40, deadline=None)
@given(
    labels=labels_lists,
    seed=seeds,
    calibration=st.sampled_from([0, 1, 2, 0.2]),
    test=st.sampled_from([None, 1, 2, 0.3]),
)
def test_a_split_is_disjoint_complete_and_holds_every_class(labels, seed, calibration, test):
    parts = split(toy(labels), calibration, test, seed)
    drawn = positions(parts)
    assert sum(len(d) for d in drawn.values()) == len(labels)
    assert set().union(*drawn.values()) == set(range(len(labels)))
    for part in parts.parts().values():
        assert numbers(part) == part.index.tolist() == sorted(part.index.tolist())
        assert part.labels.tolist() == [labels[i] for i in part.index.tolist()]
        assert set(part.labels.tolist()) == set(range(5))
    assert (parts.calibration is None) == (calibration == 0)


def test_whole_numbers_balance_and_shares_stratify():
    labels = np.repeat(np.arange(3), [100, 41, 10])
    parts = split(toy(labels), calibration=4, test=0.25, seed=1)
    assert parts.calibration.counts(3).tolist() == [4, 4, 4]
    assert parts.test.counts(3).tolist() == [25, 10, 3]  # 10.25 and 2.5, rounded half up
    assert parts.counts.tolist() == [71, 27, 3]


def test_a_source_without_a_test_part_is_split_and_says_so():
    parts = split(load("digits"), seed=0)
    assert "stratified share of 0.25" in parts.note
    shares = parts.test.counts(10) / load("digits").counts
    np.testing.assert_allclose(shares, 0.25, atol=0.5 / 174)


def test_the_sources_own_test_part_is_kept_or_thinned():
    base = toy([0, 1] * 10, test=[0, 1, 0, 1, 0, 1, 1])
    whole = split(base, calibration=2)
    assert whole.test is base.test
    assert whole.counts.tolist() == [8, 8]
    thin = split(base, test=2, seed=3)
    assert thin.test.counts(2).tolist() == [2, 2]
    assert numbers(thin.test) == thin.test.index.tolist()
    assert thin.counts.tolist() == [10, 10]


def test_images_are_drawn_alike_often():
    """Over 400 seeds each of 10 images is set aside about 400 * 3 / 10 times (binomial, 5 deviations)."""
    base = toy([0] * 10 + [1] * 10)
    times = np.zeros(20)
    for seed in range(400):
        times[split(base, test=3, seed=seed).test.index.numpy()] += 1
    assert np.abs(times - 120).max() < 5 * np.sqrt(400 * 0.3 * 0.7)


@pytest.mark.parametrize(
    ("sizes", "arguments", "sentence"),
    [  # guards D9: class, count seen, count needed
        ([9, 1, 9], {}, r"Class 1 has 1 images in `toy`, but the split needs at least 2: 1 for test, and 1"),
        ([9, 2, 9], {"calibration": 1}, r"Class 1 has 2 .* at least 3: 1 for test and 1 for calibration"),
        ([9, 5, 9], {"test": 5}, r"Class 1 has 5 .* at least 6: 5 for test.*Set fewer images aside"),
        (
            [9, 9, 9],
            {"test": 0},
            r"`test` must be a whole number of images a class from 1, or a share.*found 0",
        ),
        ([9, 9, 9], {"test": 1.0}, r"`test` must be .*found 1\.0"),
        ([9, 9, 9], {"calibration": -1}, r"`calibration` must be .*found -1"),
        ([9, 9, 9], {"calibration": float("nan")}, r"`calibration` must be .*found nan"),
        ([9, 9, 9], {"calibration": True}, r"`calibration` must be .*found True"),
        ([9, 9, 9], {"seed": -1}, r"`seed` must be a whole number in 0\.\.2\*\*32 - 1; found -1"),
        ([9, 9, 9], {"seed": 0.5}, r"`seed` must be a whole number"),
    ],
)
def test_a_split_that_cannot_be_is_refused(sizes, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        split(toy(np.repeat(np.arange(3), sizes)), **arguments)


def test_too_few_images_in_the_own_test_part_are_named():  # guards D9
    with pytest.raises(
        ValueError, match=r"Class 1 has 1 images in the test part of `toy`, but `test` = 2 needs 2"
    ):
        split(toy([0, 1], test=[0, 0, 1]), test=2)


# ---------------------------------------------------------------- long tail


@settings(max_examples=40, deadline=None)
@given(labels=labels_lists, seed=seeds, draw=st.sampled_from(["generator", "cao2019"]), data=st.data())
def test_a_long_tail_holds_exactly_the_counts_in_any_order_of_the_images(labels, seed, draw, data):
    have = np.bincount(labels, minlength=5)
    counts = [data.draw(st.integers(1, int(n))) for n in have]
    for order in (labels, labels[::-1]):
        cut = long_tail(toy(order), counts, seed, draw)
        assert cut.counts.tolist() == counts
        assert numbers(cut.train) == cut.train.index.tolist() == sorted(cut.train.index.tolist())
        assert cut.train.labels.tolist() == [order[i] for i in cut.train.index.tolist()]


def test_a_long_tail_leaves_the_other_parts_alone():
    parts = split(load("digits"), calibration=20, seed=0)
    cut = long_tail(parts, exponential_counts(100, 10, 10), seed=0)
    assert cut.calibration is parts.calibration
    assert cut.test is parts.test
    assert set(cut.train.index.tolist()) < set(parts.train.index.tolist())
    assert f"cut to {len(cut.train)} images (data seed 0)" in cut.note


def test_counts_may_be_tensor_array_or_list():
    base = toy([0, 1] * 10)
    drawn = {
        tuple(long_tail(base, c, seed=5).train.index.tolist())
        for c in ([7, 2], np.array([7, 2]), torch.tensor([7, 2]))
    }
    assert len(drawn) == 1


def test_draws_are_nested_within_a_seed():
    base = toy(np.repeat(np.arange(3), 50))
    small, large = (set(long_tail(base, c, seed=2).train.index.tolist()) for c in ([9, 5, 2], [30, 5, 4]))
    assert small < large


def test_the_data_seed_decides_and_global_state_does_not():  # guards D21
    base = toy(np.repeat(np.arange(3), 50))

    def draw(seed):
        parts = long_tail(split(base, calibration=5, seed=seed), [20, 10, 5], seed)
        return parts.train.index_fingerprint()

    before = draw(0)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    random.seed(1)
    assert draw(0) == before
    assert len({draw(seed) for seed in range(8)}) == 8


@pytest.mark.parametrize("draw", ["generator", "cao2019"])
def test_global_random_state_is_left_alone(draw):
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate())  # noqa: NPY002
    long_tail(split(load("digit_pairs"), calibration=5, seed=3), [20] * 100, seed=3, draw=draw)
    after = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate())  # noqa: NPY002
    assert before == after


def test_split_and_tail_of_one_seed_do_not_share_their_draws():
    base = toy([0] * 200 + [1] * 200)
    first = split(base, test=100, seed=4).test.index.numpy()
    second = long_tail(base, [100, 100], seed=4).train.index.numpy()
    # independent draws meet in half of the images (hypergeometric, 5 deviations of about 5 a class)
    assert abs(len(np.intersect1d(first, second)) - 100) < 36


def test_the_draws_of_cao_et_al_are_offered_exactly():  # guards D18
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    counts = exponential_counts(60, 10, 10)
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002  their `rand_number`
    expected = []
    for c, n in zip(np.unique(labels), counts, strict=True):
        idx = np.where(labels == c)[0]
        np.random.shuffle(idx)  # noqa: NPY002
        expected.append(idx[:n])
    np.random.set_state(state)  # noqa: NPY002
    cut = long_tail(toy(labels), counts, seed=0, draw="cao2019")
    assert cut.train.index.tolist() == np.sort(np.concatenate(expected)).tolist()


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([5, 5], r"`counts` must hold one number for each of the 3 classes of `toy`; found 2.*classes=3"),
        (
            [9, 10, 9],
            r"Class 1 has 9 training images in `toy`, but `counts` asks for 10 \(1 classes are short\)",
        ),
        ([5, 0, 5], r"Class 1 has 0 images in `counts`, but each class needs at least 1"),  # guards D1
        ([5, 2.5, 5], r"`counts` must hold whole numbers"),
        ([[5, 5, 5]], r"`counts` must be one-dimensional"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts, sentence):
    with pytest.raises(ValueError, match=sentence):
        long_tail(toy(np.repeat(np.arange(3), 9)), counts, seed=0)


def test_an_unknown_draw_is_refused():
    with pytest.raises(ValueError, match=r"`draw` must be one of cao2019, generator; found `cao`"):
        long_tail(toy([0, 1]), [1, 1], 0, draw="cao")


def test_large_sources_are_split_without_a_walk_over_images():
    """100,000 images: the lines of Python that run are counted, and are far fewer than the images."""
    labels = np.arange(100_000) % 100
    base = source_from_arrays("large", np.zeros((100_000, 2, 2), np.uint8), labels)
    lines = 0

    def count(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        return count if "lt_lib" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        cut = long_tail(split(base, calibration=50, test=100), exponential_counts(850, 100, 100), seed=0)
    finally:
        sys.settrace(before)
    assert cut.counts.tolist() == exponential_counts(850, 100, 100).tolist()
    assert 20 < lines < 2000
