import numpy as np
import pytest
import torch
from scipy import stats

from lt_lib.comparison import holm
from lt_lib.posthoc.evaluation import compare, evaluation
from lt_lib.runs.fingerprint import imported_modules


def test_a_small_table_by_hand():
    # three classes, two images each: recalls 1, 1/2, 0; margins of log 3 give the guess a probability of 0.6
    guesses, labels = torch.tensor([0, 0, 1, 2, 0, 0]), torch.tensor([0, 0, 1, 1, 2, 2])
    logits = np.log(3) * torch.nn.functional.one_hot(guesses, 3).double()
    found = evaluation(logits, labels, 3)
    assert (found.plain, found.balanced, found.worst, found.worst_class) == (0.5, 0.5, 0.0, 2)
    assert found.sigma == pytest.approx(np.sqrt(1 / 6))
    assert found.nll == pytest.approx(-(np.log(0.6) + np.log(0.2)) / 2)
    assert found.ece == pytest.approx(0.1)  # one bin: 0.6 against 1/2
    assert found.per_class.tolist() == [1, 0.5, 0]
    assert found.counts.tolist() == [2, 2, 2]
    assert list(found.row()) == ["plain", "balanced", "sigma", "worst", "nll", "ece"]


def test_an_absent_class_is_not_the_worst():
    found = evaluation(torch.eye(3)[[0, 2]] * 5, torch.tensor([0, 0]), 3)
    assert (found.worst_class, found.worst) == (0, 0.5)
    assert found.per_class.isnan().tolist() == [False, True, True]


def test_truth_values_are_labels_of_two_classes():
    logits, labels = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    assert evaluation(logits, labels.bool(), 2).row() == evaluation(logits, labels, 2).row()


def test_probabilities_are_refused():
    with pytest.raises(ValueError, match="probability"):
        evaluation(torch.eye(3), torch.arange(3), 3)


def results(shift, seeds=5):
    """Recalls of 40 images a class whose number of hits rises by `shift` images in class 1."""
    found = []
    for seed in range(seeds):
        hits = [30, 20 + seed % 3 + shift, 10]
        labels = torch.arange(3).repeat_interleave(40)
        right = torch.cat([torch.arange(40) < h for h in hits])
        guesses = torch.where(right, labels, (labels + 1) % 3)
        found.append(evaluation(9 * torch.nn.functional.one_hot(guesses, 3).double(), labels, 3))
    return found


def test_each_method_is_tested_against_the_baseline_with_holms_correction():
    noisy = [results(k % 2, 5)[k] for k in range(5)]
    found = compare({"base": results(0), "noisy": noisy, "same": results(0)}, "base")
    assert [(c.method, c.number) for c in found] == [
        ("noisy", "balanced"), ("noisy", "sigma"), ("same", "balanced"), ("same", "sigma"),
    ]  # fmt: skip
    base = [m.balanced for m in results(0)]
    wanted = stats.ttest_rel([m.balanced for m in noisy], base).pvalue
    assert found[0].p_value == pytest.approx(wanted)
    assert [c.adjusted for c in found] == pytest.approx(holm([c.p_value for c in found]))
    assert found[2].p_value == 1
    assert {c.verdict() for c in found} == {"not distinguishable"}


def test_a_clear_difference_has_its_sign():
    # 3 + k images more in class 1, so all differences differ and none is near 0
    better = [results(3 + k)[k] for k in range(5)]
    (balanced,) = compare({"base": results(0), "better": better}, "base", ["balanced"])
    assert balanced.verdict() == "higher"
    (balanced,) = compare({"base": results(0), "better": better}, "better", ["balanced"])
    assert balanced.verdict() == "lower"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"baseline": "bass"}, "Did you mean `base`"),
        ({"numbers": ["sigmas"]}, "Did you mean `sigma`"),
        ({"measured": {"base": []}}, "beside the baseline"),
    ],
)
def test_comparisons_that_cannot_be_are_refused(change, words):
    given = {"measured": {"base": results(0), "other": results(1)}, "baseline": "base"}
    with pytest.raises(ValueError, match=words):
        compare(**(given | change))


def test_no_trained_run_depends_on_what_judges_corrections():
    known = imported_modules(["lt_lib.runs.experiment", "lt_lib.runs.edit"])
    assert "lt_lib.posthoc.scaling" in known
    apart = ("evaluation", "frontier", "bias_path", "last_layer", "cross_fit", "gaming")
    apart = {f"lt_lib.posthoc.{name}" for name in apart} | {"lt_lib.training.fine_tune"}
    assert not {*apart, "lt_lib.metrics.sigma", "lt_lib.metrics.calibration_error"} & set(known)
