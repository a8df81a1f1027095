"""Advice on made-up scores: what is told apart, what is not, and what is said."""

import math

import numpy as np
import pytest
from scipy import stats

from lt_lib.comparison import holm
from lt_lib.recommend import SAME, recommend

SEEDS = 6
NOISE = np.random.default_rng(0).normal(scale=0.01, size=(4, SEEDS))


def scores(**means):
    """Each method at its mean, with noise of its own beside one that all share."""
    shared = NOISE[3]
    made = {}
    for (name, mean), own in zip(means.items(), NOISE, strict=False):
        values = (mean + shared + 0.2 * own).tolist()
        made[name] = {
            "balanced": values,
            "plain": [v + 0.1 for v in values],
            "worst": [v / 2 for v in values],
        }
    return made


def test_a_clear_winner_is_advised_with_its_gain():
    found = recommend(scores(CE=0.5, best=0.7, other=0.6))
    assert (found.best, found.advised, found.alike) == ("best", "best", ())
    assert [row.verdict for row in found.rows] == ["higher", "higher", ""]
    assert [row.from_best for row in found.rows] == ["best", "lower", "lower"]
    assert found.text.startswith("**Use best** (balanced accuracy 7")
    assert "points above CE" in found.text
    assert "rare class counts" in found.why


def test_p_values_are_those_of_scipy_corrected_by_holm():
    made = scores(CE=0.5, a=0.505, b=0.52)
    found = recommend(made)
    p = [stats.ttest_rel(made[name]["balanced"], made["CE"]["balanced"]).pvalue for name in ("b", "a")]
    assert [row.p_value for row in found.rows if row.against] == pytest.approx(holm(p), rel=1e-6)


def test_noise_is_not_distinguishable_and_ce_is_kept():
    generator = np.random.default_rng(1)
    draw = {
        n: {m: generator.uniform(0.4, 0.6, 3) for m in ("balanced", "plain", "worst")}
        for n in ("CE", "x", "y")
    }
    found = recommend(draw)
    assert found.advised == "CE"
    assert "**Keep CE**" in found.text
    assert "no other method is distinguishably higher" in found.text
    assert SAME in found.table()
    assert "3 seeds" in found.notes[0]


def test_of_equals_above_the_reference_the_cheapest_is_advised():
    made = scores(CE=0.5, dear=0.701, cheap=0.7)
    found = recommend(made, seconds={"CE": 1, "dear": 9, "cheap": 2})
    assert found.best == "dear"
    assert found.alike == ("cheap",)
    assert found.advised == "cheap"
    assert "it takes the least time" in found.text
    assert recommend(made).advised == "dear"


def test_the_measure_that_decides_may_turn_the_advice():
    made = scores(CE=0.5, rare=0.6)
    made["rare"]["plain"] = [v - 0.2 for v in made["CE"]["plain"]]
    assert recommend(made).advised == "rare"
    plain = recommend(made, measure="plain")
    assert plain.advised == "CE"
    assert "Distinguishably lower: rare" in plain.text
    assert plain.rows[1].verdict == "lower"
    assert "shares of classes" in plain.why


def test_equal_differences_over_few_seeds_prove_nothing():
    made = {
        n: {m: [v, v, v] for m in ("balanced", "plain", "worst")} for n, v in {"CE": 0.5, "a": 0.6}.items()
    }
    found = recommend(made)
    assert found.advised == "CE"
    assert found.rows[0].verdict == SAME
    assert found.rows[0].p_value == 0.25  # two of eight patterns of signs


def test_what_the_held_out_part_can_resolve_is_said():
    made = scores(CE=0.5, a=0.6)
    notes = " ".join(recommend(made, test_counts=[90, 40, 4], class_names=["cat", "dog", "owl"]).notes)
    assert "imbalanced, too (90 to 4 images a class)" in notes
    assert "owl, has 4 images: one of them moves its accuracy by 25.0 points" in notes
    assert "nearly balanced" in " ".join(recommend(made, test_counts=[50, 50, 45]).notes)


def test_every_method_has_its_row_with_all_measures():
    lines = recommend(scores(CE=0.5, a=0.6, b=0.55)).table().splitlines()
    assert len(lines) == 5
    assert len({line.count("|") for line in lines}) == 1
    assert "worst class" in lines[0]
    assert lines[2].startswith("| a | 60.")


def test_bad_scores_are_refused():
    made = scores(CE=0.5, a=0.6)
    with pytest.raises(ValueError, match="`worst` is missing"):
        recommend({"CE": {"balanced": [0.1, 0.2], "plain": [0.1, 0.2]}})
    with pytest.raises(ValueError, match="`reference` must be one of a"):
        recommend({"a": made["a"]})
    with pytest.raises(ValueError, match=r"shares in 0\.\.1"):
        recommend({"CE": {m: [71.0, 72.0] for m in ("balanced", "plain", "worst")}})
    with pytest.raises(ValueError, match="Run more seeds"):
        recommend({"CE": {m: [0.5] for m in ("balanced", "plain", "worst")}})
    made["a"]["balanced"] = made["a"]["balanced"][:-1]
    with pytest.raises(
        ValueError, match=r"`scores` of `a` must hold one score for each of the . seeds of `CE`"
    ):
        recommend(made)
    with pytest.raises(ValueError, match=r"`scores\[a\]\[plain\]` must be finite; found 1 NaN"):
        recommend({"CE": made["CE"], "a": {**made["CE"], "plain": [math.nan, *made["CE"]["plain"][1:]]}})


def test_bad_remarks_are_refused():
    made = scores(CE=0.5, a=0.6)
    with pytest.raises(ValueError, match="`seconds` must hold every method; `a` is missing"):
        recommend(made, seconds={"CE": 1.0})
    with pytest.raises(
        ValueError, match=r"`test_counts` must hold the images .*; found \[0, 0\] with no names"
    ):
        recommend(made, test_counts=[0, 0])
    with pytest.raises(ValueError, match=r"found \[3, 4\] with 1 names\. Take both from the split"):
        recommend(made, test_counts=[3, 4], class_names=["x"])
