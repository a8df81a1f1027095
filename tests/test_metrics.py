"""Accuracies by class against scikit-learn, published values and closed forms."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score

from lt_lib.metrics import accuracy, geometric_mean, per_class_accuracy, shot_accuracy, shot_groups

FACTS = json.loads((Path(__file__).parent / "facts" / "longtail_class_counts.json").read_text())


# ---------------------------------------------------------------- accuracy by class


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=80))
def test_accuracies_match_scikit_learn(pairs):
    guess, truth = (np.array(side) for side in zip(*pairs, strict=True))
    found = accuracy(guess, truth, 5)
    recalls = recall_score(truth, guess, labels=range(5), average=None, zero_division=np.nan)
    present = np.isin(np.arange(5), truth)
    np.testing.assert_allclose(found.per_class, np.where(present, recalls, np.nan))
    assert found.plain == pytest.approx(accuracy_score(truth, guess))
    assert found.balanced == pytest.approx(recalls[present].mean())
    assert found.sigma == pytest.approx(recalls[present].std())
    assert found.worst == pytest.approx(recalls[present].min())
    assert found.absent == tuple(np.flatnonzero(~present))


def test_balanced_accuracy_matches_scikit_learn():
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, 7, (2, 500))
    assert accuracy(guess, truth, 7).balanced == pytest.approx(balanced_accuracy_score(truth, guess))


def test_the_torchmetrics_example():
    found = accuracy([2, 1, 0, 1], [2, 1, 0, 0], 3)
    assert found.per_class.tolist() == [0.5, 1, 1]
    assert round(found.balanced, 4) == 0.8333


def test_sigma_of_two_gaussians_with_priors_nine_to_one():
    """Theorem T5's example: recalls 0.98207 and 0.46072, sigma 0.26068, accuracy 0.92994."""
    n = 100_000
    right = (round(0.98207 * 9 * n), round(0.46072 * n))
    truth = np.repeat([0, 1], [9 * n, n])
    guess = np.concatenate([np.arange(9 * n) >= right[0], np.arange(n) < right[1]]).astype(np.int64)
    found = accuracy(guess, truth, 2)
    assert found.per_class.tolist() == pytest.approx([0.98207, 0.46072], abs=1e-6)
    assert found.sigma == pytest.approx(0.26068, abs=6e-6)
    assert found.plain == pytest.approx(0.92994, abs=6e-6)
    assert found.worst == pytest.approx(0.46072, abs=1e-6)


def test_an_absent_class_is_nan_skipped_and_named():  # guards D4
    found = accuracy([0, 0, 3], [0, 3, 3], 4)
    assert [math.isnan(v) for v in found.per_class.tolist()] == [False, True, True, False]
    assert found.absent == (1, 2)
    assert (found.balanced, found.worst, found.sigma) == (0.75, 0.5, 0.25)


def test_logits_stand_for_their_largest_entry():
    logits = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 5
    from_logits, from_classes = (per_class_accuracy(p, labels, 5) for p in (logits, logits.argmax(1)))
    assert from_logits.dtype == torch.float64
    assert torch.equal(from_logits, from_classes)
    grad = logits.clone().requires_grad_()
    assert torch.equal(per_class_accuracy(grad, labels, 5), from_classes)


def test_accuracy_comes_from_totals_not_from_means_of_batches():  # guards D19
    truth = torch.tensor([0, 1] * 5 + [0])
    guess = torch.tensor([0, 1] * 5 + [1])  # only the ragged last batch of one image is wrong
    assert accuracy(guess, truth, 2).plain == pytest.approx(10 / 11)
    by_batch = [
        accuracy(g, t, 2).plain for g, t in zip(guess.split(5), truth.split(5), strict=True)
    ]  # 1, 1, 0
    assert np.mean(by_batch) == pytest.approx(2 / 3)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(12)))
def test_the_order_of_the_images_does_not_matter(order):
    truth, guess = np.arange(12) % 3, np.arange(12) % 4 % 3
    first, second = accuracy(guess, truth, 3), accuracy(guess[list(order)], truth[list(order)], 3)
    assert torch.equal(first.per_class, second.per_class)
    assert first.plain == second.plain


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_labels_of_every_whole_dtype_are_scored_alike(dtype):
    labels, guesses = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0])
    assert accuracy(guesses.to(dtype), labels.to(dtype), 1000).plain == 0.75
    assert per_class_accuracy(guesses.to(dtype), labels.to(dtype), 2).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("predictions", "labels", "sentence"),
    [
        ([0, 1, 2], [1, 2, 3], r"`labels` must be 0\.\.2; found 3 \(1 times\).*np\.unique"),  # guards D6
        ([0, 1, 3], [0, 1, 2], r"`predictions` must be 0\.\.2; found 3"),
        ([0, 1], [0, 1, 2], r"equally long and not empty; found shapes \(2,\) and \(3,\)"),
        (np.zeros(0, int), np.zeros(0, int), r"equally long and not empty; found shapes \(0,\) and \(0,\)"),
        ([], [], r"equally long and not empty"),
        (1, 2, r"equally long and not empty"),
        (None, [1], r"`predictions` must hold numbers in a tensor, an array or a list"),
        ([0.0, 1.0], [0, 1], r"`predictions` must be one-dimensional whole numbers"),
        ([[0.1, 0.9]], [1], r"one column for each of the 3 classes; found shape \(1, 2\)"),
        ([[0.1, float("nan"), 0.2]], [1], r"`predictions` must be finite"),
    ],
)
def test_what_cannot_be_scored_is_refused(predictions, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        accuracy(predictions, labels, 3)


# ---------------------------------------------------------------- geometric mean


def test_geometric_mean_of_imbalanced_learns_example():
    recalls = per_class_accuracy([0, 1, 1, 0], [0, 0, 1, 1], 2)
    assert geometric_mean(recalls, correction=0.001) == pytest.approx(0.5)
    assert geometric_mean([0.0, 0.9]) == 0
    assert geometric_mean([0.0, 0.4], correction=0.1) == pytest.approx(0.2)
    assert geometric_mean([float("nan"), 0.25, 1.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(("values", "correction"), [([float("nan")], 0), ([1.5], 0), ([0.5], 2)])
def test_geometric_mean_refuses_what_are_no_shares(values, correction):
    with pytest.raises(ValueError, match=r"`per_class` and `correction` must lie in 0\.\.1"):
        geometric_mean(values, correction)


# ---------------------------------------------------------------- shot groups


def test_the_bounds_of_the_groups_on_both_sides():  # guards P10
    groups = shot_groups([101, 100, 99, 21, 20, 19, 1])
    assert groups == {"many": (0,), "medium": (1, 2, 3, 4), "few": (5, 6)}
    assert shot_groups([21, 20, 19], few=21) == {"many": (), "medium": (0,), "few": (1, 2)}


def test_the_groups_of_imagenet_lt_are_the_published_ones():
    sizes = {group: len(members) for group, members in shot_groups(FACTS["ImageNet_LT"]).items()}
    assert sizes == {"many": 385, "medium": 479, "few": 136}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(0, 200), st.integers(0, 200))
def test_each_class_is_in_one_group(counts, a, b):
    groups = shot_groups(counts, many=max(a, b), few=min(a, b))
    assert sorted(c for members in groups.values() for c in members) == list(range(len(counts)))


def test_an_empty_group_is_none_not_nan():  # guards D5
    assert shot_accuracy([0.9, 0.7], [500, 200]) == {"many": 0.8, "medium": None, "few": None}


def test_a_group_of_absent_classes_is_none_and_others_skip_them():  # guards D4, D5
    nan = float("nan")
    found = shot_accuracy([0.9, nan, nan, 0.4, 0.2], [500, 200, 50, 5, 5])
    assert found == {"many": 0.9, "medium": None, "few": pytest.approx(0.3)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([0.5, 0.5], [5, 0]), r"Class 1 has 0 images in `counts`"),  # guards D1
        (([0.5], [5, 5]), r"`per_class` must hold one number for each of the 2 classes; found 1"),
        (([0.5], [5], 10, 20), r"`few` must be at most `many` \+ 1; found few = 20 and many = 10"),
    ],
)
def test_groups_that_cannot_be_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        shot_accuracy(*arguments)
