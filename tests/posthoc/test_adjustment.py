import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from two_gaussians import ARGMAX, BALANCED, COUNTS, log_posteriors, quantiles, recalls

from lt_lib.losses import make_loss
from lt_lib.posthoc import (
    MEASURES,
    TAUS,
    choose_tau,
    logit_adjustment,
    prior_shift,
    tau_normalise,
    tau_scales,
)


def test_two_gaussians_have_the_recalls_of_theorem_t5():
    assert recalls(log_posteriors) == pytest.approx(ARGMAX, abs=5e-6)
    adjusted = recalls(lambda x: logit_adjustment(log_posteriors(x), COUNTS))
    assert adjusted == pytest.approx((BALANCED, BALANCED), abs=1e-12)


@pytest.mark.parametrize("loss", ["balanced_softmax", "logit_adjustment"])
def test_after_training_or_while_training_ends_at_the_same_logits(loss):  # guards D15
    x, labels = quantiles()

    def trained(name):
        rule = make_loss(name, COUNTS).double()

        def objective(theta):
            weights = torch.tensor(theta, requires_grad=True)
            value = rule(weights[0] * x[:, None] * torch.tensor([1.0, -1.0]) + weights[1:], labels)
            return value.item(), torch.autograd.grad(value, weights)[0].numpy()

        found = minimize(objective, np.zeros(3), jac=True, method="BFGS", options={"gtol": 1e-10}).x
        return lambda x: found[0] * x[:, None] * torch.tensor([1.0, -1.0]) + torch.tensor(found[1:])

    plain, balanced = trained("ce"), trained(loss)
    after = logit_adjustment(plain(x), COUNTS)
    assert torch.allclose(after.log_softmax(1), balanced(x).log_softmax(1), atol=1e-6)
    assert recalls(plain) == pytest.approx(ARGMAX, abs=2e-3)  # quantiles stand for the law
    assert recalls(balanced) == pytest.approx((BALANCED, BALANCED), abs=2e-3)
    twice = recalls(lambda x: logit_adjustment(balanced(x), COUNTS))
    assert twice[0] < 0.5 < 0.98 < twice[1]  # both at once overshoots


def test_the_shift_is_the_negative_log_prior():
    assert torch.allclose(prior_shift([90, 9, 1]), torch.tensor([0.1053605, 2.4079456, 4.6051702]).double())
    logits = np.array([[1, 2, 3]])
    assert logit_adjustment(logits, [90, 9, 1], tau=0.5).tolist() == [
        pytest.approx([1.0526803, 3.2039728, 5.3025851])
    ]
    kept = torch.randn(4, 3)
    assert torch.equal(logit_adjustment(kept, [5, 3, 2], tau=0), kept)
    assert logit_adjustment(kept, [5, 3, 2]).dtype == torch.float32


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 2), st.integers(0, 10**6))
def test_tau_normalisation_scales_lengths_and_keeps_directions(tau, seed):
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    changed, lengths = tau_normalise(weight, tau), weight.norm(dim=1)
    assert torch.allclose(changed.norm(dim=1), lengths ** (1 - tau))
    assert torch.allclose(torch.cosine_similarity(changed, weight), torch.ones(5).double())
    assert torch.allclose(tau_scales(weight, tau)[:, None] * weight, changed)


def test_tau_0_is_the_identity_and_tau_1_gives_equal_lengths():
    weight = torch.randn(4, 6) * torch.tensor([8.0, 4.0, 2.0, 1.0])[:, None]
    assert torch.equal(tau_normalise(weight, 0), weight)
    assert torch.allclose(tau_normalise(weight, 1).norm(dim=1), torch.ones(4))
    order = tau_normalise(weight, 2).norm(dim=1).argsort()
    assert order.tolist() == weight.norm(dim=1).argsort(descending=True).tolist()


@pytest.mark.parametrize("measure", ["balanced_accuracy", "log_likelihood"])
def test_the_chosen_tau_is_the_bayes_rule_where_there_is_one(measure):
    x, labels = quantiles()
    found = choose_tau(
        lambda tau: logit_adjustment(log_posteriors(x), COUNTS, tau), labels, 2, measure=measure
    )
    assert found.tau == 1.0
    assert found.grid.tolist() == list(TAUS)
    assert found.scores.argmax() == 10
    if measure == "balanced_accuracy":
        assert found.scores[10] == pytest.approx(BALANCED, abs=1e-3)
        assert found.scores[0] == pytest.approx(sum(ARGMAX) / 2, abs=1e-3)


def test_of_equal_taus_the_smallest_is_chosen():
    logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    found = choose_tau(
        lambda tau: logit_adjustment(logits, [3, 1], tau), [0, 1], 2, grid=[1.0, 0.5, 20.0, 0.5]
    )
    assert found.tau == 0.5
    assert found.scores.tolist() == [1.0, 1.0, 0.5]


LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 5.0]])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: logit_adjustment(LOGITS, [5, 0, 2]), "Class 1 has 0 images"),
        (lambda: logit_adjustment(LOGITS, [5, 2]), "one column for each of the 2 classes .* found 3"),
        (lambda: logit_adjustment(LOGITS.softmax(1), [5, 3, 2]), "each row is a probability vector"),
        (lambda: logit_adjustment(LOGITS / 0, [5, 3, 2]), "`logits` must be finite"),
        (lambda: logit_adjustment(LOGITS[0], [5, 3, 2]), r"`logits` must be \(n, C\)"),
        (lambda: logit_adjustment(LOGITS, [5, 3, 2], float("nan")), "`tau` must be a number, finite"),
        (lambda: tau_normalise(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), 1), "Row 1 of `weight` is zero"),
        (lambda: tau_normalise([1.0, 2.0], 1), r"`weight` must be \(C, d\)"),
        (lambda: choose_tau(lambda tau: LOGITS, None, 3), "no calibration images.*not be made on test data"),
        (lambda: choose_tau(lambda tau: LOGITS, [], 3), "There are no calibration images"),
        (lambda: choose_tau(lambda tau: LOGITS, [0, 2], 3), "Class 1 has 0 images in `labels`"),
        (lambda: choose_tau(lambda tau: LOGITS, [0, 1, 2], 3, grid=[]), "`grid` holds no value"),
        (
            lambda: choose_tau(lambda tau: LOGITS, [0, 1, 2], 3, measure="accuracy"),
            "`measure` must be one of",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        call()


def test_whole_numbers_are_not_cut_off():
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8]], dtype=torch.float64)
    assert torch.allclose(tau_normalise([[3, 4], [6, 8]], 1.0), expected)
    assert torch.allclose(tau_normalise(torch.tensor([[3, 4], [6, 8]]), 1.0), expected)
    assert tau_normalise(torch.tensor([[3.0, 4.0]]), 1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: tau_scales([[1e-3], [1.0]], 200),
            "`tau` = 200 is too large here: .*overflows torch.float64",
        ),
        (lambda: tau_scales([[1e3], [1.0]], 200), "`tau` = 200 is too large here"),
        (lambda: tau_normalise(torch.tensor([[1e-3], [1.0]]), 20), "normalised row overflows torch.float32"),
        (lambda: prior_shift([9, 1], 1e308), r"`tau` = 1e\+308 is too large here"),
        (lambda: logit_adjustment(torch.zeros(1, 2).half(), [9, 1], 1e5), "overflows torch.float16"),
    ],
)
def test_an_overflow_is_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("measure", MEASURES)
def test_the_tried_logits_must_fit_the_labels(measure):
    for shape in ((3, 2), (5, 2), (4, 3)):
        with pytest.raises(ValueError, match=r"`logits_of` must return \(n, C\) = \(4, 2\)"):
            choose_tau(lambda tau, shape=shape: torch.zeros(shape), [0, 1, 0, 1], 2, measure=measure)
