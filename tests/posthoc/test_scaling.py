import cvxpy
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from two_gaussians import BALANCED, COUNTS, log_posteriors, quantiles, recalls

from lt_lib.posthoc import Scaling, fit_logit_bias, fit_temperature, fit_vector_scaling, prior_shift

FITS = {"bias": fit_logit_bias, "vector": fit_vector_scaling}


def noisy_logits(n=80, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % (classes + 2) % classes  # two classes are larger
    logits = 3 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits + 2 * torch.nn.functional.one_hot(labels, classes), labels


def weights_of(labels, balanced):
    counts = torch.bincount(labels).double()
    return (
        1 / (len(counts) * counts[labels]) if balanced else torch.full((len(labels),), 1 / len(labels))
    ).double()


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize(("name", "ridge"), [("bias", 0.0), ("vector", 0.0), ("vector", 0.3)])
def test_the_fits_are_those_of_an_independent_convex_solver(name, balanced, ridge):
    logits, labels = noisy_logits()
    found = FITS[name](logits, labels, balanced=balanced, **({"ridge": ridge} if ridge else {}))
    scales, shift, weights = cvxpy.Variable(4), cvxpy.Variable(4), weights_of(labels, balanced).numpy()
    changed = cvxpy.multiply(logits.numpy(), cvxpy.vstack([scales] * len(labels))) + cvxpy.vstack(
        [shift] * len(labels)
    )
    right = cvxpy.sum(cvxpy.multiply(changed, np.eye(4)[labels]), axis=1)
    loss = weights @ (cvxpy.log_sum_exp(changed, axis=1) - right)
    penalty = ridge / 2 * (cvxpy.sum_squares(scales - 1) + cvxpy.sum_squares(shift))
    problem = cvxpy.Problem(
        cvxpy.Minimize(loss + penalty), [cvxpy.sum(shift) == 0, *([scales == 1] if name == "bias" else [])]
    )
    problem.solve(solver=cvxpy.CLARABEL)
    assert found.scales.numpy() == pytest.approx(scales.value, abs=1e-4)
    assert found.shift.numpy() == pytest.approx(shift.value, abs=1e-4)
    assert found.loss == pytest.approx(float(loss.value), abs=1e-5 if ridge else 1e-7)
    assert found.gradient < 1e-6
    plain = -(weights_of(labels, balanced) @ found(logits).log_softmax(1)[range(80), labels])
    assert found.loss == pytest.approx(float(plain), abs=1e-12)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("scale", [0.01, 1, 100])
def test_the_temperature_is_that_of_a_search(balanced, scale):
    logits, labels = noisy_logits()
    found = fit_temperature(logits * scale, labels, balanced)

    def loss(log_t):
        log_p = (logits * scale / np.exp(log_t)).log_softmax(1)
        return -float(weights_of(labels, balanced) @ log_p[range(80), labels])

    search = minimize_scalar(loss, bounds=(np.log(scale) - 4, np.log(scale) + 4), method="bounded")
    assert np.log(found.temperature) == pytest.approx(search.x, abs=1e-4)
    assert found.loss <= search.fun + 1e-12
    assert torch.equal(found(logits).argmax(1), logits.argmax(1))


def test_calibrated_logits_need_no_temperature_and_the_log_prior_as_bias():
    x, labels = quantiles()
    logits = log_posteriors(x)
    assert fit_temperature(5 * logits, labels).temperature == pytest.approx(5, rel=2e-3)
    bias = fit_logit_bias(logits, labels)
    prior = prior_shift(COUNTS)
    assert torch.allclose(bias.shift, prior - prior.mean(), atol=5e-3)
    assert recalls(lambda x: bias(log_posteriors(x))) == pytest.approx((BALANCED, BALANCED), abs=2e-3)


def test_vector_scaling_undoes_a_known_change():
    x, labels = quantiles()
    logits = log_posteriors(x) / torch.tensor([2.0, 0.5]) + torch.tensor([1.0, -3.0])
    found = fit_vector_scaling(logits, labels)
    assert torch.allclose(found(logits).softmax(1), log_posteriors(x).exp(), atol=2e-3)


@pytest.mark.parametrize("fit", [fit_temperature, fit_logit_bias, fit_vector_scaling])
def test_a_fit_needs_calibration_images_of_each_class(fit):
    logits, labels = noisy_logits()
    for bad, sentence in (
        ((logits, None), "There are no calibration images"),
        ((logits, labels.clamp(max=2)), "Class 3 has 0 images"),
        ((logits, labels[:-1]), "equally long; found 80 and 79"),
        ((logits, labels + 1), r"`labels` must be 0\.\.3; found 4"),
        ((logits.softmax(1), labels), "must be logits"),
        ((logits / 0, labels), "must be finite"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fit(*bad)


def test_an_optimum_at_infinity_is_refused():
    labels = torch.arange(40) % 4
    right = torch.nn.functional.one_hot(labels, 4) + 0.1 * torch.randn(
        40, 4, generator=torch.Generator().manual_seed(0)
    )
    with pytest.raises(ValueError, match="Every calibration image is classified rightly"):
        fit_temperature(right, labels)
    with pytest.raises(ValueError, match="do not favour the right classes"):
        fit_temperature(-right, labels)
    with pytest.raises(ValueError, match="the larger the scales the better"):
        fit_vector_scaling(right, labels)
    assert fit_vector_scaling(right, labels, ridge=0.1).gradient < 1e-6
    assert fit_logit_bias(right, labels).gradient < 1e-6  # exists nevertheless
    with pytest.raises(ValueError, match="`ridge` must be a number, at least 0"):
        fit_vector_scaling(right, labels, ridge=-1)


def test_a_fit_is_applied_to_the_logits_of_its_classes_alone():
    fit = Scaling(torch.tensor([0.5, 2.0]).double(), torch.tensor([-0.25, 0.25]).double(), 0.0, 0.0)
    expected = torch.tensor([[1.25, 8.25]]).double()
    for logits in ([[3, 4]], np.array([[3, 4]]), torch.tensor([[3, 4]])):
        assert torch.equal(fit(logits), expected)
    assert fit(torch.tensor([[3.0, 4.0]])).dtype == torch.float32
    for columns in (1, 3):
        with pytest.raises(ValueError, match=r"two classes or more|one column for each of the 2 classes"):
            fit(torch.full((4, columns), 2.0))
