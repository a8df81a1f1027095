import copy

import cvxpy
import numpy as np
import pytest
import torch
from toy_surgery import CLASSES, bits, clusters, data, same_bits, trained_net

from lt_lib.metrics import accuracy
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.loop import operate
from lt_lib.surgery.pressure import class_pressure
from lt_lib.surgery.soft import energy_coefficients, soft_sensitivity

NET, (HESSIAN, CALIBRATION) = trained_net(), data()
SIZE = sum(p.numel() for p in NET.parameters())
VECTORS = torch.linalg.qr(torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0)).double())[0].T


def soft_accuracies(offset, temperature=1.0):
    """Mean probability of the right label by class, at displaced weights."""
    net, parts = copy.deepcopy(NET).eval(), offset.split([p.numel() for p in NET.parameters()])
    with torch.no_grad():
        for p, part in zip(net.parameters(), parts, strict=True):
            p += part.view_as(p)
        p = (net(CALIBRATION.images) / temperature).softmax(1)
    return torch.stack([p[CALIBRATION.labels == c, c].mean() for c in range(CLASSES)])


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("batch", [7, 500])
def test_derivatives_are_central_differences_of_the_soft_accuracies(temperature, batch):
    net = trained_net()
    before = bits(net)
    found = soft_sensitivity(
        net, VECTORS, CALIBRATION.images, CALIBRATION.labels, temperature=temperature, batch=batch
    )
    eps = 1e-4
    for row, vector in zip(found.matrix, VECTORS, strict=True):
        ends = [soft_accuracies(sign * eps * vector, temperature) for sign in (1, -1)]
        assert torch.allclose(row, (ends[0] - ends[1]) / (2 * eps), atol=1e-7)
    assert float(found.matrix.abs().max()) > 0.01
    with torch.no_grad():
        logits = copy.deepcopy(NET).eval()(CALIBRATION.images)
    assert torch.equal(found.accuracy, accuracy(logits, CALIBRATION.labels, CLASSES).per_class)
    assert same_bits(before, bits(net))
    assert net.training
    assert all(p.grad is None for p in net.parameters())


def test_without_guards_the_step_is_the_gradient_over_the_curvature():
    matrix = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double()
    weights, values = torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), torch.tensor([90.0, 7.0, 0.5])
    found = energy_coefficients(matrix, weights, [0.5] * 4, 0.02, values, strong=1.0)
    step = matrix @ weights / values
    assert torch.allclose(found.alpha / found.alpha.norm(), step / step.norm())
    assert float(values.double() @ found.alpha**2) / 2 == pytest.approx(0.02)
    assert found.predicted.numpy() == pytest.approx((matrix.T @ found.alpha).numpy())


def test_with_guards_it_is_that_of_another_solver():
    matrix = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)).double()
    weights, values = torch.tensor([0.0, 0.1, 0.3, 0.6]).double(), torch.tensor([90.0, 7.0, 0.5])
    reached = [0.95, 0.9, 0.4, 0.2]
    found = energy_coefficients(matrix, weights, reached, 0.05, values, strong=0.85, max_loss=0.001)
    alpha = cvxpy.Variable(3)
    energy = cvxpy.sum_squares(cvxpy.multiply(np.sqrt(values.double().numpy()), alpha)) / 2
    change = matrix.numpy().T @ alpha
    cvxpy.Problem(cvxpy.Maximize(weights.numpy() @ change), [energy <= 0.05, change[:2] >= -0.001]).solve(
        solver=cvxpy.CLARABEL
    )
    assert found.alpha.numpy() == pytest.approx(alpha.value, abs=1e-5)
    assert float(found.predicted[:2].min()) == pytest.approx(-0.001, abs=1e-6)


def test_the_variant_runs_in_the_loop_and_evens_out_the_classes():
    net = trained_net()
    before = bits(net)
    operation = operate(net, HESSIAN, CALIBRATION, SurgeryConfig.differentiable(CLASSES, iterations=3))
    images, labels = clusters(800, seed=9)
    with torch.no_grad():
        after = accuracy(copy.deepcopy(net).eval()(images), labels, CLASSES)
        start = accuracy(copy.deepcopy(NET).eval()(images), labels, CLASSES)
    assert operation.accepted >= 1
    assert after.sigma < 0.8 * start.sigma
    assert after.balanced > start.balanced
    first = operation.trace[0]
    weights = class_pressure(first.before)
    wanted = first.sensitivity @ weights / first.values
    assert torch.allclose(first.alpha / first.alpha.norm(), wanted / wanted.norm(), atol=1e-6)
    assert first.energy == pytest.approx(0.32 * first.factor**2)
    assert all(i.passes == 3 + 6 for i in operation.trace)
    operation.restore()
    assert same_bits(before, bits(net))


def test_a_soft_step_predicts_small_changes_of_soft_accuracies():
    found = soft_sensitivity(NET, VECTORS, CALIBRATION.images, CALIBRATION.labels)
    alpha = torch.tensor([1e-3, -2e-3, 1e-3]).double()
    moved = soft_accuracies(alpha @ VECTORS) - soft_accuracies(0 * VECTORS[0])
    assert torch.allclose(found.matrix.T @ alpha, moved, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: soft_sensitivity(NET, VECTORS, d.images, d.labels, temperature=0), "temperature"),
        (lambda d: soft_sensitivity(NET, VECTORS[:, 1:], d.images, d.labels), "must be rows"),
        (lambda d: soft_sensitivity(NET, VECTORS, d.images, d.labels[1:]), "199 labels"),
        (lambda d: soft_sensitivity(NET, VECTORS, d.images, d.labels.clamp_max(2)), "Class 3 has 0"),
        (lambda d: energy_coefficients(torch.eye(2), [0.5, 0.5], [0.5, 0.5], 0.1, [1.0, -1.0]), "positive"),
        (lambda d: energy_coefficients(torch.eye(2), [0.5, 0.5], [0.5, 0.5], 0.0, [1.0, 1.0]), "positive"),
        (lambda d: SurgeryConfig(temperature=0.0), "temperature"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(CALIBRATION)
