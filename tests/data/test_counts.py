"""Class counts and statistics of imbalance against published numbers, direct double sums and scipy."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.data import exponential_counts, imbalance_statistics, step_counts

FACTS = json.loads((Path(__file__).parents[1] / "facts" / "longtail_class_counts.json").read_text())


def test_cifar10_lt_at_100_has_the_published_counts():
    published = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    counts = exponential_counts(5000, 100, 10)
    assert counts.dtype == np.int64
    assert counts.tolist() == published


@pytest.mark.parametrize(
    ("largest", "classes", "imbalance", "total"),
    [
        (5000, 10, 100, 12406),
        (5000, 10, 50, 13996),
        (5000, 10, 10, 20431),
        (500, 100, 100, 10847),
        (500, 100, 50, 12608),
        (500, 100, 10, 19573),
    ],
)
def test_cifar_lt_totals(largest, classes, imbalance, total):
    assert exponential_counts(largest, imbalance, classes).sum() == total


@pytest.mark.parametrize(
    ("largest", "classes", "imbalance", "gini"),
    [
        (5000, 10, 100, 0.613),
        (5000, 10, 50, 0.559),
        (5000, 10, 10, 0.382),
        (500, 100, 100, 0.592),
        (500, 100, 50, 0.535),
        (500, 100, 10, 0.358),
    ],
)
def test_gini_is_taken_over_counts(largest, classes, imbalance, gini):  # guards P8
    counts = exponential_counts(largest, imbalance, classes)
    assert round(imbalance_statistics(counts).gini, 3) == gini


def test_gini_does_not_change_when_classes_are_renamed():  # guards P8
    counts = exponential_counts(5000, 100, 10)
    shuffled = np.random.default_rng(0).permutation(counts)
    assert imbalance_statistics(shuffled) == imbalance_statistics(counts)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30))
def test_statistics_match_the_double_sum_and_scipy(counts):
    found = imbalance_statistics(counts)
    n = np.array(counts, dtype=float)
    assert found.gini == pytest.approx(
        np.abs(n[:, None] - n[None, :]).sum() / (2 * len(n) ** 2 * n.mean()), abs=1e-12
    )
    nats = scipy.stats.entropy(n)
    assert found.effective_classes == pytest.approx(np.exp(nats))
    assert found.entropy == pytest.approx(nats / np.log(len(n)) if len(n) > 1 else 1.0)
    assert (found.classes, found.total) == (len(counts), sum(counts))
    assert (found.largest, found.smallest) == (max(counts), min(counts))
    assert found.factor == pytest.approx(max(counts) / min(counts))


def test_balanced_classes_have_no_gini_and_full_entropy():
    found = imbalance_statistics(torch.full((7,), 30))
    assert found.gini == pytest.approx(0, abs=1e-15)
    assert found.entropy == pytest.approx(1)
    assert found.effective_classes == pytest.approx(7)


def test_imagenet_lt_is_as_published():
    found = imbalance_statistics(FACTS["ImageNet_LT"])
    assert (found.classes, found.total) == (1000, 115_846)
    assert (found.largest, found.smallest, found.factor) == (1280, 5, 256)


def test_places_lt_is_as_published():
    found = imbalance_statistics(FACTS["Places_LT"])
    assert (found.classes, found.total, found.largest, found.smallest) == (365, 62_500, 4980, 5)


profiles = {
    "largest": st.integers(1, 10_000),
    "share": st.floats(0, 1),
    "classes": st.integers(2, 200),
}


@settings(max_examples=50, deadline=None)
@given(**profiles)
def test_exponential_counts_fall_from_largest_to_largest_over_imbalance(largest, share, classes):
    imbalance = largest**share  # from 1 to `largest`, so that no class is empty
    counts = exponential_counts(largest, imbalance, classes)
    assert len(counts) == classes
    assert (np.diff(counts) <= 0).all()
    assert counts[0] == largest
    assert counts[-1] == int(largest / imbalance * (1 + 1e-9))


@settings(max_examples=50, deadline=None)
@given(**profiles, tail=st.floats(0.01, 0.99))
def test_step_counts_have_two_levels(largest, share, classes, tail):
    imbalance = largest**share
    counts = step_counts(largest, imbalance, classes, tail)
    low = int(largest / imbalance * (1 + 1e-9))
    tail_classes = min(max(int(tail * classes + 1e-9), 1), classes - 1)
    assert counts.tolist() == [largest] * (classes - tail_classes) + [low] * tail_classes


def test_step_counts_of_cifar10_at_100():
    assert step_counts(5000, 100, 10).tolist() == [5000] * 5 + [50] * 5
    assert step_counts(5000, 100, 10, tail=0.9).tolist() == [5000] + [50] * 9


def test_a_whole_quotient_is_not_cut_below_itself_by_rounding():
    # 49 * 49 ** -1.0 is 0.9999999999999999 in floating point
    assert exponential_counts(49, 49, 2).tolist() == [49, 1]
    assert all(exponential_counts(n, n, 3)[-1] == 1 for n in range(1, 500))


@pytest.mark.parametrize("make", [exponential_counts, step_counts])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((100, 0.5, 10), r"`imbalance` must be .* at least 1.*found 0\.5.*Pass 100 where"),
        ((100, float("nan"), 10), r"`imbalance` must be a finite number.*found nan"),
        ((100, 10, 1), r"`classes` must be a whole number of at least 2; found 1"),
        ((0, 10, 3), r"`largest` must be a whole number of at least 1; found 0"),
        ((10.5, 10, 3), r"`largest` must be a whole number.*found 10\.5"),
        ((5, 10, 3), r"Class 2 is left with 0 images.*Lower `imbalance` to at most 5, or raise `largest`"),
    ],
)
def test_a_profile_out_of_range_is_refused(make, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(*arguments)


@pytest.mark.parametrize("tail", [0, 1, -0.2, 1.5])
def test_a_tail_share_out_of_range_is_refused(tail):
    with pytest.raises(ValueError, match=r"`tail` must lie strictly between 0 and 1; found"):
        step_counts(100, 10, 10, tail)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([5, 0, 3], r"Class 1 has 0 images in `counts`, but each class needs at least 1"),  # guards D1, D2
        ([5, 2.5], r"`counts` must hold whole numbers; found"),
        ([], r"`counts` must be one-dimensional and not empty"),
    ],
)
def test_statistics_refuse_counts_that_are_none(counts, sentence):
    with pytest.raises(ValueError, match=sentence):
        imbalance_statistics(counts)


def test_large_profiles_are_exact():
    assert exponential_counts(10**9, 10, 3).tolist() == [10**9, 316_227_766, 10**8]
    assert exponential_counts(10**12, 1, 3).tolist() == [10**12] * 3
    assert exponential_counts(10**15, 1, 3).tolist() == [10**15] * 3
    assert step_counts(2**53 - 1, 1, 2).tolist() == [2**53 - 1] * 2
    # 10^9 - 1 over 10 is no whole number and is cut
    assert exponential_counts(10**9 - 1, 10, 2).tolist() == [10**9 - 1, 99_999_999]
    with pytest.raises(ValueError, match=r"`largest` must lie below 2\^53"):
        exponential_counts(10**19, 10, 3)
