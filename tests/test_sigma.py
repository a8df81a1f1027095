import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lt_lib.metrics.sigma import paired_images, sigma_noise

# the ten accuracies that arXiv 2605.07790 reports for its network, on 500 images each
PUBLISHED = [0.892, 0.907, 0.817, 0.686, 0.852, 0.690, 0.906, 0.905, 0.931, 0.895]


def expectation(function, truth, counts):
    """Exact mean of a function of the observed accuracies, over every outcome of every class."""
    total = 0.0
    for hits in itertools.product(*(range(n + 1) for n in counts)):
        chance = math.prod(binom.pmf(k, n, a) for k, n, a in zip(hits, counts, truth, strict=True))
        total += chance * function([k / n for k, n in zip(hits, counts, strict=True)], counts)
    return total


def test_the_squared_estimate_is_unbiased_by_exact_enumeration():
    truth, counts = [0.9, 0.6, 0.3], [4, 5, 7]
    mean = expectation(lambda a, n: sigma_noise(a, n).squared, truth, counts)
    assert mean == pytest.approx(np.var(truth), abs=1e-12)
    inflated = expectation(lambda a, n: sigma_noise(a, n).observed ** 2, truth, counts)
    noise = np.mean([a * (1 - a) / n for a, n in zip(truth, counts, strict=True)])
    assert inflated == pytest.approx(np.var(truth) + (1 - 1 / 3) * noise, abs=1e-12)


def test_the_published_network_has_the_floor_and_the_error_that_we_derived():  # guards PB4
    found = sigma_noise(PUBLISHED, [500] * 10)
    assert found.observed == pytest.approx(0.0857, abs=1e-4)
    assert found.floor == pytest.approx(0.0156, abs=1e-4)
    assert found.standard_error == pytest.approx(0.0059, abs=1e-4)
    assert found.debiased == pytest.approx(math.sqrt(found.observed**2 - 0.9 * found.floor**2), abs=2e-5)


def test_the_standard_error_is_that_of_a_simulation():
    hits = np.random.default_rng(0).binomial(500, PUBLISHED, (20_000, 10))
    simulated = (hits / 500).std(axis=1).std()
    assert sigma_noise(PUBLISHED, [500] * 10).standard_error == pytest.approx(simulated, rel=0.02)


def test_equal_classes_have_no_spread_left_and_absent_ones_do_not_count():
    found = sigma_noise([0.5, 0.5, math.nan], [10, 20, 0])
    assert (found.observed, found.debiased) == (0, 0)
    assert found.squared < 0
    assert math.isnan(found.standard_error)


def two_classifiers(n=60, seed=0, gain=0.0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), n)
    truth, wrong = np.array([0.9, 0.7, 0.4]), (labels + 1) % 3
    right = generator.random(3 * n) < truth[labels]
    # the second corrects some errors of class 2 and keeps all else
    corrected = right | ((labels == 2) & (generator.random(3 * n) < gain))
    return np.where(right, labels, wrong), np.where(corrected, labels, wrong), labels


@pytest.mark.parametrize("statistic", ["sigma", "balanced", "plain", "worst"])
def test_the_draws_are_those_of_a_bootstrap_of_images(statistic):
    before, after, labels = two_classifiers(gain=0.3)
    found = paired_images(before, after, labels, 3, statistic, resamples=20_000)
    generator, n, drawn = np.random.default_rng(1), 60, []
    measure = {"sigma": np.std, "balanced": np.mean, "plain": np.mean, "worst": np.min}[statistic]
    rights = [(guess == labels).reshape(3, n) for guess in (before, after)]
    for _ in range(2000):
        pick = generator.integers(0, n, (3, n))
        one, two = (np.take_along_axis(right, pick, 1).mean(1) for right in rights)
        drawn.append(measure(two) - measure(one))
    assert found.standard_error == pytest.approx(np.std(drawn), rel=0.07)
    d = found.after - found.before
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found.difference.low, found.difference.high) == pytest.approx(
        (2 * d - high, 2 * d - low), abs=0.01
    )


def test_intervals_hold_the_true_change_of_sigma():
    before, after = np.array([0.9, 0.7, 0.4]), np.array([0.9, 0.7, 0.4 + 0.6 * 0.3])
    truth, inside = after.std() - before.std(), 0
    for seed in range(100):
        first, second, labels = two_classifiers(seed=seed, gain=0.3)
        interval = paired_images(first, second, labels, 3, resamples=600, seed=seed).difference
        inside += interval.low <= truth <= interval.high
    assert inside >= 0.89 * 100


def test_the_same_classifier_twice_does_not_differ():
    before, _, labels = two_classifiers()
    found = paired_images(before, before, labels, 4)  # class 3 is absent
    assert (found.difference.low, found.difference.high) == (0, 0)
    assert found.verdict() == "not distinguishable"


def test_pairing_sees_what_two_separate_samples_hide():
    before, after, labels = two_classifiers(n=400, gain=0.1)
    found = paired_images(before, after, labels, 3)
    assert found.verdict() == "lower"
    rights = [(guess == labels).reshape(3, 400).mean(1) for guess in (before, after)]
    alone = [sigma_noise(a, [400] * 3).standard_error for a in rights]
    assert found.standard_error < 0.5 * math.hypot(*alone)


def test_logits_count_by_their_largest_entry():
    before, after, labels = two_classifiers(gain=0.3)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(after), 3).double()
    assert paired_images(before, one_hot, labels, 3) == paired_images(before, after, labels, 3)


@pytest.mark.parametrize(
    ("per_class", "counts", "words"),
    [
        ([0.5, 0.6], [10, 1], "needs at least 2"),
        ([0.5, 1.2], [10, 10], "in 0..1"),
        ([0.5, math.nan], [10, 0], "two classes"),
        ([0.5, 0.6], [10, 10, 10], "2 classes"),
    ],
)
def test_noise_that_is_unknown_is_refused(per_class, counts, words):
    with pytest.raises(ValueError, match=words):
        sigma_noise(per_class, counts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"statistic": "sigmas"}, "Did you mean `sigma`"),
        ({"level": 1.0}, "must lie in"),
        ({"resamples": 10}, "at least 100"),
        ({"after": [0, 1]}, "equally long"),
    ],
)
def test_bootstraps_that_cannot_be_are_refused(change, words):
    given = {"before": [0, 1, 1], "after": [0, 1, 0], "labels": [0, 1, 2], "classes": 3}
    with pytest.raises(ValueError, match=words):
        paired_images(**(given | change))
