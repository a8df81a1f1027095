"""The closed form against a numerical minimiser, published values and its properties (Theorem T2)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from lt_lib.reweighting import inverse_weights, weight_peak

LOSS = st.floats(1e-3, 20)
ALPHA = st.floats(1e-4, 50)
PRIOR = st.floats(0, 5)


def at(loss: float, mean: float, alpha: float, prior: float = 1.0) -> float:
    return float(inverse_weights([loss], mean, alpha, [prior])[0])


@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.1, 1.0, 10.0])
def test_the_weights_minimise_the_tikhonov_problem(alpha):
    losses, prior = np.array([0.05, 0.4, 1.0, 2.5, 6.0]), np.array([1.0, 0.2, 3.0, 0.0, 1.5])
    mean = losses.mean()
    weights = inverse_weights(losses, None, alpha, prior)
    assert weights.dtype == torch.float64
    for loss, first, weight in zip(losses, prior, weights.tolist(), strict=True):
        cost = lambda w, L=loss, w0=first: (w * L - mean) ** 2 + alpha * (w - w0) ** 2  # noqa: E731
        found = minimize_scalar(cost, bracket=(-1.0, 100.0), tol=1e-12)
        assert weight == pytest.approx(found.x, abs=2e-6)
        assert cost(weight) <= found.fun + 1e-12


@settings(max_examples=50, deadline=None)
@given(LOSS, LOSS, ALPHA, PRIOR)
def test_a_weight_is_the_stated_convex_combination(loss, mean, alpha, prior):
    share = loss**2 / (loss**2 + alpha)
    weight = at(loss, mean, alpha, prior)
    assert weight == pytest.approx(share * mean / loss + (1 - share) * prior, rel=1e-12)
    low, high = sorted((mean / loss, prior))
    assert low * (1 - 1e-12) <= weight <= high * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(LOSS, LOSS, PRIOR)
def test_limits_in_alpha_and_in_the_loss(loss, mean, prior):
    assert at(loss, mean, 1e-14, prior) == pytest.approx(mean / loss, rel=1e-6)
    assert at(loss, mean, 1e14, prior) == pytest.approx(prior, rel=1e-6, abs=1e-9)
    assert at(0.0, mean, 0.3, prior) == pytest.approx(prior, abs=1e-15)
    assert at(1e9, mean, 0.3, prior) < 1e-7 * (1 + mean)


@settings(max_examples=50, deadline=None)
@given(LOSS, ALPHA, PRIOR)
def test_rises_to_the_peak_and_falls_beyond(mean, alpha, prior):
    peak, highest = weight_peak(mean, alpha, prior)
    assert at(peak, mean, alpha, prior) == pytest.approx(highest, rel=1e-9)
    up = [at(peak * f, mean, alpha, prior) for f in (0.0, 0.2, 0.5, 0.8)]
    down = [at(peak * f, mean, alpha, prior) for f in (1.25, 2.0, 5.0, 100.0)]
    slack = 1e-12 * highest
    assert all(a <= b + slack for a, b in zip(up, [*up[1:], highest], strict=True))
    assert all(b <= a + slack for a, b in zip([highest, *down[:-1]], down, strict=True))


def test_the_peak_agrees_with_the_textbook_root_and_its_limits():
    mean, alpha, prior = 1.3, 0.2, 0.7
    root = (math.sqrt(alpha**2 * prior**2 + alpha * mean**2) - alpha * prior) / mean
    assert weight_peak(mean, alpha, prior) == pytest.approx((root, mean / (2 * root)), rel=1e-13)
    tiny = weight_peak(1.0, 1e-10)
    assert tiny == pytest.approx((1e-5, 0.5e5), rel=2e-5)  # sqrt(alpha), mean / (2 sqrt(alpha))
    assert weight_peak(1.0, 0.0) == (0.0, math.inf)
    assert weight_peak(0.0, 0.5, 2.0) == (0.0, 2.0)


@settings(max_examples=30, deadline=None)
@given(LOSS, LOSS, ALPHA, st.floats(0.1, 10))
def test_scale_of_the_losses(loss, mean, alpha, scale):
    # alpha is in units of a squared loss: scaling both leaves the weights
    assert at(scale * loss, scale * mean, scale**2 * alpha) == pytest.approx(at(loss, mean, alpha), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(LOSS, LOSS, st.floats(0, 50))
def test_sign_with_a_uniform_prior(loss, mean, alpha):
    # easier than average, and only then, means a weight above 1
    weight = at(loss, mean, alpha)
    assert weight - 1 == pytest.approx(loss * (mean - loss) / (loss**2 + alpha), rel=1e-9, abs=1e-12)
    assert at(loss, loss, alpha) == pytest.approx(1.0, rel=1e-14)


def test_weighted_losses_are_equal_at_alpha_zero_and_not_otherwise():
    losses = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    assert torch.allclose(inverse_weights(losses) * losses, losses.mean().expand(3), rtol=1e-14, atol=0)
    gap = inverse_weights(losses, None, 0.3) * losses - losses.mean()
    assert torch.allclose(gap, 0.3 * (losses - losses.mean()) / (losses**2 + 0.3), rtol=1e-12, atol=0)


def test_a_class_loss_so_small_that_its_square_vanishes():
    assert at(1e-200, 1e-199, 0.0) == pytest.approx(10.0, rel=1e-12)


def test_the_gradient_flows_to_a_tensor():
    losses = torch.tensor([0.4, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: inverse_weights(x, None, 0.1, [1.0, 2.0]), losses)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"class_loss": [1.0, 2.0], "alpha": -0.1}, ["`alpha`", "at least 0", "-0.1"]),
        ({"class_loss": [1.0, 0.0, 2.0]}, ["Class 1", "alpha = 0", "undefined"]),
        ({"class_loss": [1.0, -2.0]}, ["`class_loss`", "-2", "class 1"]),
        ({"class_loss": [1.0, math.nan]}, ["`class_loss`", "finite"]),
        ({"class_loss": []}, ["`class_loss`", "not empty"]),
        ({"class_loss": [1.0, 2.0], "prior": [1.0]}, ["`prior`", "2 classes", "found 1"]),
        ({"class_loss": [1.0, 2.0], "prior": [1.0, -1.0]}, ["`prior`", "negative"]),
        ({"class_loss": [1.0, 2.0], "mean_loss": -1.0}, ["`mean_loss`", "at least 0"]),
        ({"class_loss": [1.0, 2.0], "mean_loss": [1.0, 2.0]}, ["`mean_loss`", "one"]),
        ({"class_loss": [1.0, 2.0], "alpha": math.inf}, ["`alpha`", "inf"]),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are checked below
        inverse_weights(**arguments)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("arguments", [(-1.0, 1.0), (1.0, -1.0), (1.0, 1.0, -1.0), (math.nan, 1.0)])
def test_the_peak_refuses_negative_numbers(arguments):
    with pytest.raises(ValueError, match="must be a number"):
        weight_peak(*arguments)


def test_numbers_whose_squares_overflow():
    assert inverse_weights([1, 2], alpha=1e308, prior=[2, 3]).tolist() == [2, 3]
    # L = mean = 1e200 and alpha = 1e300: a share 1e100 / (1e100 + 1) of 1 is left beside the prior's rest
    assert inverse_weights([1e200], 1e200, 1e300, [7]).tolist() == pytest.approx([1])
    assert inverse_weights([1e200, 3e200]).tolist() == pytest.approx([2, 2 / 3])
    # equal parts: L^2 = alpha = 1e300, mean / L = 1e10
    assert inverse_weights([1e150], 1e160, 1e300, [1]).tolist() == pytest.approx([(1e10 + 1) / 2])


@pytest.mark.parametrize(
    ("mean", "alpha", "prior", "loss", "largest"),
    [
        (1.0, 1e308, 1.0, 0.5, 1.0),
        (1e-300, 1e-300, 1.0, 5e-301, 1.0),
        (1e-300, 1e308, 0.0, 1e154, 0.0),
        (1e200, 1e300, 0.0, 1e150, 5e49),
        (1.0, 1e308, 1e308, 0.0, 1e308),
        (1e300, 1e-300, 1.0, 1e-150, math.inf),
    ],
)
def test_the_peak_at_either_end_of_the_numbers(mean, alpha, prior, loss, largest):
    assert weight_peak(mean, alpha, prior) == pytest.approx((loss, largest), rel=1e-12, abs=1e-305)
