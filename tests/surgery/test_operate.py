"""The loop against quantities that are known without it."""

import pytest
import torch
from torch import nn
from toy_surgery import CLASSES, biased_head, bits, clusters, config, data, same_bits, trained_net

from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages
from lt_lib.surgery.loop import operate


def counted(head: nn.Linear, bias: torch.Tensor, calibration: Calibration) -> torch.Tensor:
    """Return class accuracies of the head with another bias, image by image."""
    right = torch.zeros(CLASSES, dtype=torch.float64)
    for image, label in zip(calibration.images, calibration.labels, strict=True):
        logits = [float(row @ image + b) for row, b in zip(head.weight.detach(), bias, strict=True)]
        right[label] += max(range(CLASSES), key=logits.__getitem__) == int(label)
    return right / calibration.counts


def bias_hessian(head: nn.Linear, hessian: HessianImages) -> torch.Tensor:
    """Return the Hessian of the mean cross-entropy in the bias: the mean of diag(p) - p p^T."""
    p = head(hessian.images).softmax(1).detach()
    return torch.diag(p.mean(0)) - p.T @ p / len(p)


def test_one_step_along_one_spike_of_a_bias_is_what_counting_says() -> None:
    head, (hessian, calibration) = biased_head(), data()
    bias = head.bias.detach().clone()
    values, vectors = torch.linalg.eigh(bias_hessian(head, hessian))
    value, q, radius = values[-1], vectors[:, -1], 0.8
    before = counted(head, bias, calibration)
    slope = (
        counted(head, bias + radius * q, calibration) - counted(head, bias - radius * q, calibration)
    ) / (2 * radius)
    pressure = (1 - before) / (1 - before).sum()
    alpha = radius if float(pressure @ slope) > 0 else -radius  # no guards: to the end of the interval

    settings = config(spikes=1, iterations=1, radius=radius, strong=1.0, params="bias")
    done = operate(head, hessian, calibration, settings)

    (step,) = done.trace
    sign = torch.sign(step.alpha[0] * alpha)  # an eigenvector's sign is free
    assert step.values.tolist() == pytest.approx([float(value)])
    assert step.before.tolist() == pytest.approx(before.tolist())
    assert (sign * step.sensitivity[0]).tolist() == pytest.approx(slope.tolist())
    assert float(step.alpha.abs()) == pytest.approx(radius)
    assert step.energy == pytest.approx(float(value) * radius**2 / 2)
    reached = counted(head, bias + alpha * q, calibration)
    assert step.candidate.tolist() == pytest.approx(reached.tolist())
    assert not torch.equal(reached, before)
    assert step.accepted
    assert torch.allclose(head.bias.detach(), bias + alpha * q, atol=1e-6)
    assert torch.allclose(done.offset(), alpha * q, atol=1e-6)


def test_what_one_iteration_measured_after_its_step_the_next_measures_before_its_own() -> None:
    net, (hessian, calibration) = trained_net(), data()
    done = operate(net, hessian, calibration, config())
    assert done.accepted >= 1
    for earlier, later in zip(done.trace[:-1], done.trace[1:], strict=True):
        assert torch.equal(earlier.after, later.before)


def test_sigma_of_a_biased_head_falls_and_the_energy_is_the_quadratic_models() -> None:
    head, (hessian, calibration) = biased_head(), data()
    settings = config(iterations=6, radius=0.05, minimum=0.005, radius_unit="nats", params="bias")
    done = operate(head, hessian, calibration, settings)
    assert float(done.after.std(correction=0)) < 0.5 * float(done.before.std(correction=0))
    for step in done.trace:
        assert step.energy <= 0.05 * (1 + 1e-9)  # the ball is within the first spike's energy
        assert step.radius <= (2 * 0.05 / float(step.values.max())) ** 0.5 * (1 + 1e-9)


def test_weights_after_a_rollback_and_after_restore_are_the_old_ones_to_the_bit() -> None:
    net, (hessian, calibration) = trained_net(torch.float32), data(torch.float32)
    start = bits(net)
    never = config(rollback_sigma=0.0, rollback_drop=0.0, radius=3.0, iterations=2)
    done = operate(net, hessian, calibration, never)
    assert not any(step.accepted for step in done.trace)
    assert same_bits(bits(net), start)
    assert done.trace[1].reused
    assert done.trace[1].products == 0
    done = operate(net, hessian, calibration, config())
    assert done.accepted >= 1
    assert not same_bits(bits(net), start)
    moved = bits(net)
    assert all(torch.equal(moved[n], start[n]) for n in start if "running" in n or "num_batches" in n)
    done.restore()
    assert same_bits(bits(net), start)
    done.redo()
    assert same_bits(bits(net), moved)


def test_modes_gradients_and_random_state_stay() -> None:
    net, (hessian, calibration) = trained_net(), data()
    net[1].eval()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    modes = [module.training for module in net.modules()]
    random = torch.get_rng_state()
    operate(net, hessian, calibration, config(iterations=1))
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert all(p.grad is None for name, p in net.named_parameters() if name != "0.weight")
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("method", ["screened", "exact", "forward"])
def test_the_seed_settles_everything(method: str) -> None:
    traces, weights = [], []
    for _ in range(2):
        net, (hessian, calibration) = trained_net(), data()
        traces.append(operate(net, hessian, calibration, config(method=method)).trace)
        weights.append(bits(net))
    assert traces[0] == traces[1]
    assert same_bits(*weights)


def test_a_frozen_basis_costs_no_more_products() -> None:
    net, (hessian, calibration) = trained_net(), data()
    done = operate(net, hessian, calibration, config(recompute=False))
    assert [step.products > 0 for step in done.trace] == [True, *[False] * (len(done.trace) - 1)]
    assert all(torch.equal(step.values, done.trace[0].values) for step in done.trace)


def test_line_search_takes_a_shorter_step_where_the_whole_one_is_refused() -> None:
    head, (hessian, calibration) = biased_head(), data()
    wild = {"spikes": 3, "iterations": 1, "radius": 12.0, "strong": 1.0, "params": "bias", "eps": 0.5}
    whole = operate(head, hessian, calibration, config(**wild, eps_unit="length"))
    assert not whole.trace[0].accepted
    halved = operate(head, hessian, calibration, config(**wild, eps_unit="length", line_search=5))
    step = halved.trace[0]
    assert step.accepted
    assert 0 < step.factor < 1
    assert float(step.alpha.norm()) == pytest.approx(12.0 * step.factor)


def test_given_directions_are_used_as_they_are() -> None:
    head, (hessian, calibration) = biased_head(), data()
    rows = torch.linalg.qr(torch.randn(4, 2, generator=torch.Generator().manual_seed(3)).double())[0].T
    for given in (rows, lambda model, images, k, seed: rows[:k]):
        start = head.bias.detach().clone()
        done = operate(
            head, hessian, calibration, config(iterations=1, spikes=2, directions=given, params="bias")
        )
        quotients = (rows @ bias_hessian_at(head, start, hessian) * rows).sum(1)
        assert done.trace[0].values.tolist() == pytest.approx(quotients.tolist())
        done.restore()


def bias_hessian_at(head: nn.Linear, bias: torch.Tensor, hessian: HessianImages) -> torch.Tensor:
    other = biased_head()
    other.bias.data = bias
    return bias_hessian(other, hessian)


def test_progress_sees_each_iteration() -> None:
    net, (hessian, calibration) = trained_net(), data()
    seen = []
    done = operate(net, hessian, calibration, config(), lambda step: seen.append((step.done, step.total)))
    assert seen == [(i + 1, 4) for i in range(len(done.trace))]
    assert len(done.table()["sigma_after"]) == len(done.trace)


def test_a_rule_that_would_repeat_a_refused_step_ends_the_loop() -> None:
    net, (hessian, calibration) = trained_net(), data()
    settings = config(amplitude="fixed", rollback_sigma=0.0, rollback_drop=0.0, radius=3.0, iterations=9)
    done = operate(net, hessian, calibration, settings)
    assert len(done.trace) == 1
    assert "same step" in done.stopped


def test_presets_say_what_the_sheet_says() -> None:
    written = SurgeryConfig.as_written(10)
    assert (written.iterations, written.spikes, written.weights, written.power) == (10, 9, "error", 1.0)
    assert (written.strong, written.max_loss, written.eps_unit) == (0.85, 0.01, "radius")
    assert (written.radius, written.minimum, written.amplitude) == (0.02, 0.002, "snr")
    assert (written.rollback_sigma, written.rollback_drop) == (0.005, 0.07)
    released = SurgeryConfig.as_released(10)
    assert (released.weights, released.amplitude, released.eps) == ("gap", "gamma", 0.01)
    assert (released.eps_unit, released.rollback_sigma, released.rollback_drop) == ("length", 0.005, None)
    ablation = SurgeryConfig.as_released(10, "ablation")
    assert (ablation.strong, ablation.max_loss, ablation.others) == (0.7, pytest.approx(0.004), 0.03)
    assert (ablation.strong_by, ablation.betas, ablation.iterations) == ("baseline", (0.9, 0.999), 15)
    isic = SurgeryConfig.as_released(8, "isic", iterations=5)
    assert (isic.shape, isic.max_loss, isic.radius) == ("box", pytest.approx(0.012), 0.01)
    deflated = SurgeryConfig.as_released(100, "deflated")
    assert (deflated.spikes, deflated.cumulative, deflated.iterations) == (15, True, 3)
    assert SurgeryConfig.from_dict(isic.to_dict()) == isic


def test_clusters_are_not_separable() -> None:
    images, labels = clusters(200, seed=2)
    assert 0.3 < float((biased_head()(images).argmax(1) == labels).double().mean()) < 0.95
