"""Intervals and paired comparisons against scipy, full enumeration in fractions, and simulation."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.metrics import Interval, bootstrap_interval, paired_comparison, seed_interval

samples = st.lists(st.floats(-100, 100), min_size=2, max_size=20).filter(lambda v: np.ptp(v) > 1e-3)


# ---------------------------------------------------------------- one mean


@settings(max_examples=50, deadline=None)
@given(samples, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_seed_interval_is_scipys(values, level):
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(level)
    ours = seed_interval(values, level)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-9)
    assert ours.estimate == pytest.approx(np.mean(values))
    assert (ours.level, ours.n) == (level, len(values))


def test_two_values_by_hand():
    # t with one degree of freedom is Cauchy: the 0.975 quantile is tan(0.475 pi) = 12.7062
    ours = seed_interval(torch.tensor([1.0, 3.0]))
    assert (ours.low, ours.high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)


@pytest.mark.parametrize("n", [3, 10])
def test_seed_interval_covers_as_often_as_it_says(n):
    draws = np.random.default_rng(7).normal(5, 2, (4000, n))
    covered = np.mean([i.low <= 5 <= i.high for i in map(seed_interval, draws)])
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)


def test_equal_values_give_no_width_in_spite_of_rounding():
    ours = seed_interval([0.1 + 0.2] * 7)
    assert ours.low == ours.high == ours.estimate == pytest.approx(0.3)


def test_text():
    interval = Interval(0.71284, 0.70051, 0.72517, 0.95, 10)
    assert interval.text(scale=100) == "71.3 [70.1, 72.5]"
    assert interval.text(digits=3) == "0.713 [0.701, 0.725]"
    assert Interval(-0.001, -0.02, 0.04, 0.95, 3).text() == "0.0 [0.0, 0.0]"


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_bootstrap_is_scipys_percentile_interval_up_to_resampling(statistic):
    values = np.random.default_rng(1).exponential(1, 60)
    ours = bootstrap_interval(values, statistic=statistic, seed=3)
    theirs = scipy.stats.bootstrap(
        (values,),
        getattr(np, statistic),
        n_resamples=10_000,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    error = 0.15 * theirs.standard_error  # the ends of 10,000 resamples stray by about 0.03 of it
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=error)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=error)
    assert ours.estimate == getattr(np, statistic)(values)


def test_bootstrap_of_many_zeros_and_ones_is_the_normal_interval():
    values = np.arange(5000) % 5 == 0
    ours = bootstrap_interval(values, resamples=2000)
    half = 1.96 * np.sqrt(0.2 * 0.8 / 5000)
    assert (ours.low, ours.high) == pytest.approx((0.2 - half, 0.2 + half), abs=0.08 * half)


def test_bootstrap_depends_on_its_seed_alone():
    values, state = [1.0, 2.0, 4.0, 8.0], np.random.get_state()[1].tolist()  # noqa: NPY002
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    many = np.random.default_rng(0).normal(size=300)
    assert bootstrap_interval(many, seed=1) != bootstrap_interval(many, seed=2)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@pytest.mark.parametrize("interval", [seed_interval, bootstrap_interval])
@pytest.mark.parametrize(
    ("values", "level", "sentence"),
    [
        ([1.0], 0.95, r"`values` must hold at least 2 values to have a spread; found 1\. Run more seeds"),
        ([], 0.95, r"`values` must be one-dimensional and not empty"),
        ([1.0, float("nan")], 0.95, r"`values` must be finite; found 1 NaN"),
        ([1.0, 2.0], 95, r"`level` must lie strictly between 0 and 1; found 95\. Pass 0\.95"),
    ],
)
def test_no_interval_without_a_spread(interval, values, level, sentence):
    with pytest.raises(ValueError, match=sentence):
        interval(values, level)


def test_bootstrap_refuses_an_unknown_statistic_and_too_few_resamples():
    with pytest.raises(ValueError, match=r"`statistic` must be one of mean, median; found `max`"):
        bootstrap_interval([1, 2], statistic="max")
    with pytest.raises(ValueError, match=r"`resamples` must be at least 100.*found 10"):
        bootstrap_interval([1, 2], resamples=10)


# ---------------------------------------------------------------- pairs


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=9))
def test_the_sign_flip_p_value_is_the_full_enumeration(differences):
    d = [Fraction(v, 10) for v in differences]
    patterns = list(itertools.product((1, -1), repeat=len(d)))
    hits = sum(abs(sum(s * v for s, v in zip(p, d, strict=True))) >= abs(sum(d)) for p in patterns)
    # tenths are no binary fractions: ties are broken by rounding unless they are guarded
    base = np.full(len(d), 0.7)
    found = paired_comparison(base + np.array(differences) / 10, base)
    assert found.p_value == hits / len(patterns)
    assert found.wins == sum(v > 0 for v in differences)
    assert found.n == len(d)


@pytest.mark.parametrize("n", [5, 10, 14])
def test_the_sign_flip_p_value_is_scipys_up_to_fourteen_pairs(n):
    a, b = np.random.default_rng(n).normal((0.4, 0), 1, (n, 2)).T
    theirs = scipy.stats.permutation_test(
        (a - b,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert paired_comparison(a, b).p_value == pytest.approx(theirs.pvalue, abs=1e-12)


def test_beyond_fourteen_pairs_the_p_value_is_sampled_and_close():
    a = np.random.default_rng(2).normal(0.4, 1, 16)
    patterns = (np.arange(2**16)[:, None] >> np.arange(16)) & 1
    exact = np.mean(np.abs((2 * patterns - 1) @ a) >= abs(a.sum()) - 1e-12)
    found = paired_comparison(a, np.zeros(16), seed=1).p_value
    assert found == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 1e5) + 1e-4)
    assert paired_comparison(np.ones(40), np.zeros(40)).p_value == pytest.approx(1 / 100_001)


def test_the_difference_is_scipys_paired_interval():
    a, b = np.random.default_rng(3).normal(0.7, 0.05, (2, 10))
    theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.9)
    ours = paired_comparison(a, b, level=0.9).difference
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=10))
def test_exchanging_the_methods_exchanges_the_verdict(pairs):
    a, b = np.array(pairs).T
    there, back = paired_comparison(a, b), paired_comparison(b, a)
    opposite = {"higher": "lower", "lower": "higher", "not distinguishable": "not distinguishable"}
    assert back.verdict() == opposite[there.verdict()]
    assert back.p_value == there.p_value
    assert back.difference.low == pytest.approx(-there.difference.high)


def test_verdicts():
    noise = np.array([0.01, -0.02, 0.015, 0.0, -0.01, 0.02, -0.005, 0.01, 0.0, -0.015])
    assert paired_comparison(0.75 + noise, np.full(10, 0.7)).verdict() == "higher"
    assert paired_comparison(0.65 + noise, np.full(10, 0.7)).verdict() == "lower"
    assert paired_comparison(0.7 + noise, np.full(10, 0.7)).verdict() == "not distinguishable"
    assert paired_comparison([0.5] * 4, [0.5] * 4).verdict() == "not distinguishable"


def test_equal_differences_of_few_seeds_prove_nothing():
    assert paired_comparison([0.8, 0.8], [0.7, 0.7]).verdict() == "not distinguishable"  # p = 1/2
    assert paired_comparison([0.8] * 6, [0.7] * 6).verdict() == "higher"  # p = 1/32


def test_pairs_must_match():
    with pytest.raises(ValueError, match=r"`a` and `b` must be paired, one value a seed; found 3 and 2"):
        paired_comparison([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match=r"`b` must be finite"):
        paired_comparison([1, 2], [1, float("inf")])


def test_differences_of_rounding_are_ties():
    found = paired_comparison([0.1 + 0.2] * 8, [0.3] * 8)
    assert (found.wins, found.p_value, found.verdict()) == (0, 1.0, "not distinguishable")
    assert paired_comparison([0.3 + 1e-9] * 8, [0.3] * 8).verdict() == "higher"


def test_an_interval_holds_plain_numbers():
    found = seed_interval(np.array([0.5, 0.7, 0.6]))
    assert all(type(v) is float for v in (found.estimate, found.low, found.high))
