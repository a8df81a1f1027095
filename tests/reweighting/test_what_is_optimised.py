"""Theorem T2 in float64: what each reading of inverse reweighting really trains."""

import pytest
import torch
from scipy.integrate import quad
from small_problem import BETA, COUNTS, cosine, dense_losses, example, module
from torch.autograd import grad

from lt_lib.reweighting import InverseReweighting, weight_peak

S = sum(n * b for n, b in zip(COUNTS, BETA.tolist(), strict=True)) / 64


@pytest.fixture
def dense():
    """Gradients of the reference objectives, without any code of the library."""
    inputs, weight, labels = example()
    sample, classes = dense_losses(inputs @ weight.T, labels)
    phi = (torch.tensor(COUNTS) * BETA * classes.log()).sum() / 64
    objectives = {"class": classes.mean(), "sample": sample.mean(), "phi": phi, "log": classes.log().mean()}
    gradients = {name: grad(value, weight, retain_graph=True)[0] for name, value in objectives.items()}
    return {name: value.item() for name, value in objectives.items()}, gradients


def objective(**options):
    inputs, weight, labels = example()
    value = module(**options)(inputs @ weight.T, labels)
    return value.item(), grad(value, weight, allow_unused=True)[0]


def test_the_example_has_the_stated_values(dense):
    values, gradients = dense
    assert pytest.approx(1.646045918, abs=1e-9) == S
    assert values["class"] == pytest.approx(1.919393626, abs=1e-9)
    assert values["sample"] == pytest.approx(1.864812585, abs=1e-9)
    assert cosine(gradients["class"], gradients["sample"]) == pytest.approx(0.812995, abs=1e-6)


@pytest.mark.parametrize("mean", ["class", "sample"])
def test_through_the_weights_only_the_mean_is_trained(dense, mean):
    values, gradients = dense
    value, found = objective(mean=mean)
    assert value == pytest.approx(S * values[mean], rel=1e-13)
    assert torch.allclose(found, S * gradients[mean], rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("mean", ["detached", "running", "epoch"])
def test_a_constant_mean_trains_nothing_through_the_weights(dense, mean):
    value, found = objective(mean=mean)
    assert value == pytest.approx(S * dense[0]["class"], rel=1e-13)
    assert found.norm() < 1e-15


def test_a_mean_weighted_by_beta_makes_beta_a_class_weight():
    inputs, weight, labels = example()
    expected = S * (BETA * dense_losses(inputs @ weight.T, labels)[1]).mean()
    value, found = objective(mean="macro")
    assert value == pytest.approx(expected.item(), rel=1e-13)
    assert torch.allclose(found, grad(expected, weight)[0], rtol=1e-11, atol=1e-15)


def test_beta_and_the_batch_only_scale_the_step(dense):
    # without a macro factor s = 1: the objective is exactly class-mean cross-entropy
    value, found = objective(macro="off", beta=None)
    assert value == pytest.approx(dense[0]["class"], rel=1e-13)
    assert torch.allclose(found, dense[1]["class"], rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("mean", ["class", "sample", "detached"])
def test_stopped_weights_train_a_geometric_mean(dense, mean):
    values, gradients = dense
    found = objective(through_weights=False, mean=mean)[1]
    size = values["sample" if mean == "sample" else "class"]
    assert torch.allclose(found, size * gradients["phi"], rtol=1e-11, atol=1e-15)
    assert cosine(found, gradients["class"]) == pytest.approx(0.616124, abs=1e-6)
    assert cosine(found, gradients["sample"]) == pytest.approx(0.939011, abs=1e-6)


def test_stopped_weights_under_the_class_mean_reduction(dense):
    values, gradients = dense
    value, found = objective(through_weights=False, reduction="class", beta=None)
    assert value == pytest.approx(values["class"], rel=1e-13)
    assert torch.allclose(found, values["class"] * gradients["log"], rtol=1e-11, atol=1e-15)
    assert cosine(found, gradients["class"]) == pytest.approx(0.999798, abs=1e-6)


def single_class_losses(logits_scale, options):
    """Class losses as the only free numbers: one sample a class, `apply_weights` on them."""
    losses = logits_scale.clone().requires_grad_()
    loss = InverseReweighting([1] * len(losses), dtype=torch.float64, **options)
    return losses, loss, torch.arange(len(losses))


@pytest.mark.parametrize(("classes", "expected"), [(10, -0.010298), (100, -0.111328)])
def test_the_hardest_class_can_be_pushed_up(classes, expected):
    start = torch.full((classes,), 0.01, dtype=torch.float64)
    start[0] = 1.7
    losses, loss, labels = single_class_losses(start, {"alpha": 1.0, "reduction": "class"})
    slope = classes * grad(loss.apply_weights(losses, labels), losses)[0]
    assert slope[0].item() == pytest.approx(expected, abs=1e-6)
    mean, share = start.mean(), start**2 / (start**2 + 1)
    stated = (2 * mean * start + 1 - start**2) / (start**2 + 1) ** 2 + share.mean()
    assert torch.allclose(slope, stated, rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [0.05, 1.0])
def test_stopped_and_regularised_it_fits_a_robust_loss(alpha):
    # psi' = w* at a frozen mean, psi = mean/2 log(l^2 + alpha) + w0 sqrt(alpha) arctan(l / sqrt(alpha))
    start = torch.tensor([0.2, 0.9, 3.1], dtype=torch.float64)
    options = {"alpha": alpha, "through_weights": False, "reduction": "class"}
    losses, loss, labels = single_class_losses(start, options)
    slopes = 3 * grad(loss.apply_weights(losses, labels), losses)[0]
    mean = start.mean()
    psi = lambda x: mean / 2 * (x**2 + alpha).log() + alpha**0.5 * (x / alpha**0.5).atan()  # noqa: E731
    point = start.clone().requires_grad_()
    assert torch.allclose(slopes, grad(psi(point).sum(), point)[0], rtol=1e-12, atol=0)
    area, _ = quad(lambda x: (float(mean) * x + alpha) / (x * x + alpha), 0.2, 3.1)
    assert float(psi(start[2]) - psi(start[0])) == pytest.approx(area, rel=1e-9)


def test_eps_multiplies_each_product_by_its_factor():
    start = torch.tensor([1e-4, 0.3, 0.0], dtype=torch.float64)
    losses, loss, labels = single_class_losses(start, {"eps": 1e-8})
    weights = loss.weights(losses, labels).detach()
    mean = start.mean()
    assert (weights * start)[0].item() == pytest.approx(float(mean) / 2, rel=1e-12)  # one half at 1e-4
    assert torch.allclose(weights * start, mean * start**2 / (start**2 + 1e-8), rtol=1e-12, atol=0)
    assert weights[2] == 0
    assert loss.diagnostics.fallbacks == 0


def test_clamped_classes_leave_the_identity(dense):
    inputs, weight, labels = example()
    classes = dense_losses(inputs @ weight.T, labels)[1]
    limit = 1.0
    raw = BETA * classes.mean() / classes
    kept, counts = (raw <= limit).double().detach(), torch.tensor(COUNTS, dtype=torch.float64)
    assert 0 < kept.sum() < 6
    expected = (kept * counts * BETA).sum() * classes.mean() + limit * ((1 - kept) * counts * classes).sum()
    loss = module(clamp=limit)
    value = loss(inputs @ weight.T, labels)
    assert value.item() == pytest.approx(expected.item() / 64, rel=1e-13)
    assert torch.allclose(grad(value, weight)[0], grad(expected / 64, weight)[0], rtol=1e-11, atol=1e-15)
    shares = loss.diagnostics.clamped_shares()
    assert shares == pytest.approx(
        (float(1 - kept.mean()), float(((1 - kept) * counts).sum() / 64)), rel=1e-12
    )


def test_alpha_bounds_the_weights_without_a_clamp():
    losses = torch.logspace(-6, 1, 8, dtype=torch.float64)
    point, loss, labels = single_class_losses(losses, {"alpha": 0.01})
    bound = weight_peak(float(losses.mean()), 0.01)[1]
    assert loss.weights(point, labels).max() <= bound * (1 + 1e-12)


def test_a_large_alpha_is_plain_cross_entropy_and_the_prior_its_weights(dense):
    assert torch.allclose(objective(alpha=1e12, beta=None)[1], dense[1]["sample"], rtol=1e-9, atol=1e-15)
    inputs, weight, labels = example()
    sample = dense_losses(inputs @ weight.T, labels)[0]
    prior = 1 / torch.tensor(COUNTS, dtype=torch.float64)
    expected = ((prior / prior.mean())[labels] * sample).mean()
    value = objective(alpha=1e12, beta=None, prior="inverse")[0]
    assert value == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.3},
        {"alpha": 0.3, "prior": "inverse"},
        {"eps": 1e-2, "clamp": 0.9},
        {"normalise": True, "alpha": 0.1},
    ],
)
def test_gradients_by_finite_differences(options):
    inputs, weight, labels = example()
    assert torch.autograd.gradcheck(lambda w: module(**options)(inputs @ w.T, labels), weight)
    assert torch.autograd.gradgradcheck(lambda w: module(**options)(inputs @ w.T, labels), weight)


def test_appearances_weigh_class_mean_batches_over_an_epoch():
    # expected gradient weight kappa_c = E[1{c in P} / |P|]; head / tail 1.61: CIFAR-10-LT IF 100, batch 256
    counts = torch.tensor([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50])
    labels = torch.repeat_interleave(torch.arange(10), counts)
    generator = torch.Generator().manual_seed(0)
    kappa = torch.zeros(10, dtype=torch.float64)
    loss_module = InverseReweighting(counts, dtype=torch.float64)
    for _ in range(6):
        for batch in labels[torch.randperm(len(labels), generator=generator)].split(256):
            loss = torch.ones(len(batch), dtype=torch.float64, requires_grad=True)
            slope = grad(loss_module.apply_weights(loss, batch), loss)[0]
            kappa += torch.zeros(10, dtype=torch.float64).index_add(0, batch, slope)
    assert float(kappa[0] / kappa[9]) == pytest.approx(1.61, abs=0.1)
