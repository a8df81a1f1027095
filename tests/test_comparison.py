"""Corrections and correlations against hand-made cases and other libraries."""

import numpy as np
import pytest
from scipy import stats

from lt_lib.comparison import holm, left_out_errors, partial_correlation, rank_correlation


def test_holm_on_a_textbook_case():
    # smallest times 4, next times 3, next times 2, each at least the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1, 1])


def test_holm_rejects_what_its_definition_rejects():
    generator = np.random.default_rng(0)
    for _ in range(20):
        p = generator.beta(0.3, 2, 12)
        rejected = np.zeros(12, dtype=bool)
        for k, i in enumerate(np.argsort(p)):
            if p[i] > 0.05 / (12 - k):
                break
            rejected[i] = True
        assert ((holm(p) <= 0.05) == rejected).all()


def test_a_partial_correlation_is_that_of_least_squares_residuals():
    generator = np.random.default_rng(1)
    group, z = generator.integers(0, 4, 60), generator.normal(size=60)
    x, y = z + generator.normal(size=60) + group, 2 * z + generator.normal(size=60) - group
    design = np.column_stack([np.eye(4)[group], z])
    residuals = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (x, y)]
    found = partial_correlation(x, y, group, z, resamples=10)
    assert found.estimate == pytest.approx(np.corrcoef(*residuals)[0, 1], abs=1e-12)


def test_differences_between_groups_do_not_count():
    x = np.array([0, 1, 2, 10, 11, 12.0])
    y = np.array([2, 1, 0, 12, 11, 10.0])
    assert np.corrcoef(x, y)[0, 1] > 0.9
    assert partial_correlation(x, y, list("aaabbb"), resamples=10).estimate == pytest.approx(-1)


def test_a_common_cause_vanishes_at_matched_covariate():
    generator = np.random.default_rng(2)
    z = generator.normal(size=2000)
    x, y = z + 0.3 * generator.normal(size=2000), z + 0.3 * generator.normal(size=2000)
    assert partial_correlation(x, y, [0] * 2000, resamples=1).estimate > 0.8
    assert abs(partial_correlation(x, y, [0] * 2000, z, resamples=1).estimate) < 0.1


def test_intervals_of_dependent_values_need_their_clusters():
    generator = np.random.default_rng(3)
    method = np.repeat(np.arange(8), 50)  # 400 values, but 8 independent ones
    x, y = (generator.normal(size=8)[method] + 0.05 * generator.normal(size=400) for _ in range(2))
    alone = partial_correlation(x, y, [0] * 400)
    together = partial_correlation(x, y, [0] * 400, clusters=[method])
    assert together.high - together.low > 3 * (alone.high - alone.low)
    assert together.low <= together.estimate <= together.high


def test_no_spread_gives_nan():
    assert np.isnan(partial_correlation([1, 1, 1], [1, 2, 3], [0, 0, 0], resamples=5).estimate)


def test_rank_correlation_is_spearmans():
    generator = np.random.default_rng(4)
    x = generator.normal(size=10)
    y = x + generator.normal(size=10)
    found = rank_correlation(x, y)
    assert found.estimate == pytest.approx(stats.spearmanr(x, y).statistic)
    assert -1 <= found.low < found.estimate < found.high <= 1
    assert rank_correlation(x, np.exp(x)).low == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: holm([0.5, 1.5]), "must lie in 0..1"),
        (lambda: holm([]), "not empty"),
        (lambda: rank_correlation([1, 2, 3], [1, 2, 3, 4]), "must be paired"),
        (lambda: rank_correlation([1, 2], [1, 2]), "at least 3 values"),
        (lambda: partial_correlation([1, 2, 3], [1, 2, 3], [0, 0]), "equally long"),
        (lambda: partial_correlation([1, 2, np.nan], [1, 2, 3], [0, 0, 0]), "x"),
    ],
)
def test_bad_input_is_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_left_out_errors_vanish_for_a_linear_law_and_are_those_of_the_mean_without_columns() -> None:
    x = np.arange(9.0)
    groups = list("aaabbbccc")
    assert left_out_errors([x], 3 * x - 2, groups) == pytest.approx(np.zeros(3), abs=1e-18)
    y = np.array([0.0, 0, 0, 1, 1, 1, 5, 5, 5])
    assert left_out_errors([], y, groups) == pytest.approx([9, 2.25, 20.25])
    noise = np.random.default_rng(0).normal(size=9)  # a useless column costs out of sample
    assert left_out_errors([noise], y, groups).mean() > left_out_errors([], y, groups).mean()
    assert left_out_errors([], y[::-1], groups[::-1]) == pytest.approx([20.25, 2.25, 9])


def test_left_out_errors_refuse_one_group() -> None:
    with pytest.raises(ValueError, match="two groups or more; found 3 labels of 1"):
        left_out_errors([], [1.0, 2.0, 3.0], ["a"] * 3)
