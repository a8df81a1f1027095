import math

import pytest
import torch

from lt_lib.curvature import scaling_share
from lt_lib.posthoc import fit_logit_bias
from lt_lib.posthoc.evaluation import evaluation
from lt_lib.surgery.split_gain import PARTS, over_bias, split_change, split_gain

N, C = 120, 4


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(seed=0, tail=1.5):
    """Logits that know the class and lean to the first ones, and labels."""
    labels = torch.arange(N) % C
    lean = torch.linspace(tail, -tail, C, dtype=torch.float64)
    return 1.5 * torch.nn.functional.one_hot(labels, C) + normal(N, C, seed=seed) + lean, labels


BIAS, GAINS = torch.tensor([-1.0, 0.5, 0.2, 0.3]).double(), torch.tensor([1.2, 0.7, 1.0, 1.5]).double()


def test_a_bias_is_all_bias_and_a_shift_of_all_logits_is_no_change():
    z, _ = logits()
    found = split_change(z, z + BIAS + normal(N, 1))
    assert found.shares == pytest.approx({"bias": 1, "gains": 0, "remainder": 0}, abs=1e-12)
    assert torch.allclose(found.bias, BIAS - BIAS.mean())
    assert all(math.isnan(share) for share in split_change(z, z + normal(N, 1)).shares.values())


def test_vector_scaling_leaves_no_remainder():
    z, _ = logits()
    found = split_change(z, GAINS * z + BIAS)
    assert found.shares["remainder"] == pytest.approx(0, abs=1e-12)
    assert found.shares["gains"] > 0.05
    assert torch.allclose(found.gains, GAINS - 1, atol=1e-9)
    whole = sum(found.parts.values())
    change = GAINS * z + BIAS - z
    assert torch.allclose(whole, change - change.mean(1, keepdim=True))


@pytest.mark.parametrize("centre", [False, True])
def test_the_split_is_two_nested_least_squares_fits(centre):
    z, _ = logits()
    after = z + 0.3 * normal(N, C, seed=3) + 0.2 * z.square()
    change = after - z
    change = change - change.mean(1, keepdim=True)
    seen = z - z.mean(1, keepdim=True) if centre else z
    centring = torch.eye(C).double() - 1 / C
    constants = torch.stack([centring[k].expand(N, C).reshape(-1) for k in range(C)], 1)
    terms = torch.stack([(seen[:, k : k + 1] * centring[k]).reshape(-1) for k in range(C)], 1)
    found = split_change(z, after, centre)
    explained = 0.0
    for columns, parts in ((constants, ["bias"]), (torch.cat([constants, terms], 1), ["bias", "gains"])):
        fit = columns @ torch.linalg.lstsq(columns, change.reshape(-1, 1), driver="gelsd").solution
        mine = sum(found.parts[part] for part in parts)
        assert torch.allclose(fit.view(N, C), mine, atol=1e-9)
        explained = float(fit.square().sum() / change.square().sum())
    assert found.shares["bias"] + found.shares["gains"] == pytest.approx(explained)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert explained == pytest.approx(float(scaling_share(seen, change[None])[0]))


@pytest.mark.parametrize("number", ["balanced", "sigma", "nll"])
def test_both_splits_of_a_gain_sum_to_it(number):
    z, labels = logits()
    after = GAINS * z + BIAS + 0.5 * normal(N, C, seed=5)
    found = split_gain(z, after, labels, C, number)
    total = getattr(evaluation(after, labels, C), number) - getattr(evaluation(z, labels, C), number)
    assert sum(found.nested.values()) == pytest.approx(total)
    assert sum(found.shapley.values()) == pytest.approx(total)
    assert found.after - found.before == pytest.approx(total)
    biased = evaluation(z + found.change.bias, labels, C)
    assert found.nested["bias"] == pytest.approx(getattr(biased, number) - found.before)
    assert getattr(found.bias_only, number) == pytest.approx(getattr(biased, number))


def test_a_gain_by_bias_is_credited_to_the_bias_in_either_split():
    z, labels = logits()
    found = split_gain(z, fit_logit_bias(z, labels)(z), labels, C)
    assert found.nested["bias"] > 0.05
    assert found.shapley["bias"] == pytest.approx(found.nested["bias"])
    assert [found.nested[p] for p in PARTS[1:]] == pytest.approx([0, 0])


def test_a_gain_by_knowledge_of_the_image_is_in_the_remainder():
    z, labels = logits(tail=0.0)
    knowing = z + 2 * torch.nn.functional.one_hot(labels, C) - 0.5
    found = split_gain(z, knowing, labels, C)
    assert found.nested["remainder"] > 0.5 * (found.after - found.before) > 0.05


def test_a_surgery_that_is_a_bias_adds_nothing_to_a_bias_fit():
    (calibration, labels), (test, _) = logits(seed=1), logits(seed=2)
    found = over_bias((calibration, calibration + BIAS), (test, test + BIAS), labels, labels, C)
    assert found.biased.row() == pytest.approx(found.both.row(), abs=1e-5)
    assert {pair.verdict() for pair in found.added.values()} == {"not distinguishable"}
    assert found.text() == "on top of a bias fit, surgery changes balanced accuracy by 0.0 [0.0, 0.0] points"
    assert found.plain.balanced == evaluation(test, labels, C).balanced
    assert found.operated.balanced == evaluation(test + BIAS, labels, C).balanced
    changes = found.changes()
    assert changes["surgery"].difference.estimate == pytest.approx(
        found.operated.balanced - found.plain.balanced
    )
    assert changes["bias fit"].verdict() == changes["surgery, then bias fit"].verdict() == "higher"
    assert changes["surgery on top of the bias fit"].verdict() == "not distinguishable"


def test_a_surgery_that_separates_classes_adds_to_it():
    (calibration, labels), (test, _) = logits(seed=1), logits(seed=2)
    better = torch.nn.functional.one_hot(labels, C)
    found = over_bias((calibration, calibration + better), (test, test + better), labels, labels, C)
    assert found.added["balanced"].verdict() == "higher"
    assert "surgery changes sigma by" in found.text("sigma")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda z: split_change(z, z[:-1]), "same images"),
        (lambda z: split_change(z.softmax(1), z), "probability"),
        (lambda z: split_gain(z, z, torch.arange(N) % C, C, "accuracy"), "must be one of"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(logits()[0])
