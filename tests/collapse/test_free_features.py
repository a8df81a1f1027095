"""Theorem T4: printed values, the equation in the log domain, and gradient flows integrated by SciPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import lambertw, logsumexp, softmax

from lt_lib.collapse import (
    free_feature_flow,
    free_feature_gap,
    loss_imbalance,
    neural_collapse,
    simplex_etf,
)

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def test_one_sample_has_the_printed_gap() -> None:
    assert float(free_feature_gap(0.3, 200, 10)) == pytest.approx(6.413371, abs=5e-7)


@pytest.mark.parametrize(("time", "delta2", "delta3"), [(1e16, 0.0898, 0.0451), (1e100, 0.0124, 0.0062)])
def test_collapse_with_a_persistent_rho(time: float, delta2: float, delta3: float) -> None:
    state = free_feature_flow(CIFAR10_LT, time)
    assert state.rho == pytest.approx(1.23895, abs=5e-6)
    assert state.ratio == pytest.approx(100.0, abs=0.05)
    assert (state.delta2, state.delta3) == pytest.approx((delta2, delta3), abs=5e-5)
    # the limit is the coefficient of variation of the counts; each loss tends to (C-1)^2 / (w^2 C^2 kappa t)
    assert state.rho == pytest.approx(loss_imbalance(CIFAR10_LT), rel=1e-6)
    limit = 81 * 10 * np.array(CIFAR10_LT) / 100 / time
    np.testing.assert_allclose(state.class_loss, limit, rtol=1e-6)


def test_distances_fall_like_one_over_log_t() -> None:
    for name in ("delta2", "delta3", "delta_b"):
        scaled = [t * getattr(free_feature_flow(CIFAR10_LT, 10.0**t), name) for t in (50, 100, 200)]
        assert max(scaled) / min(scaled) < 1.1


def test_state_against_the_metrics_of_an_explicit_frame() -> None:
    state = free_feature_flow(CIFAR10_LT, 1e4, omega=2.0)
    frame = simplex_etf(10, 9, seed=4)
    features = (state.gap * 9 / 20)[:, None] * frame
    found = neural_collapse(features, torch.arange(10), 2 * frame)
    assert found.nc1 == 0
    assert (found.nc2, found.nc3, found.offset, found.logit_scale) == pytest.approx(
        (state.delta2, state.delta3, state.delta_b, state.tau), rel=1e-10
    )
    assert state.rho == pytest.approx(loss_imbalance(state.class_loss))


def test_plain_cross_entropy_keeps_all_losses_equal() -> None:
    state = free_feature_flow(CIFAR10_LT, 1e6, objective="ce")
    assert state.rho == pytest.approx(0, abs=1e-14)
    assert state.ratio == pytest.approx(1, abs=1e-14)
    assert state.delta2 == pytest.approx(0, abs=1e-14)


@given(st.integers(2, 10_000), st.floats(-12, 100), st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_gap_solves_its_equation(classes: int, log10_time: float, omega: float) -> None:
    time = 10.0**log10_time
    tau = float(free_feature_gap(1.0, time, classes, omega))
    drive = omega**2 * classes**2 / (classes - 1) * time
    # exp(tau) + (C-1) tau - 1, compared in logarithms
    left = logsumexp([tau + math.log(-math.expm1(-tau)), math.log((classes - 1) * tau)])
    assert left == pytest.approx(math.log(drive), rel=1e-13, abs=1e-12)


def test_gap_against_lambert_w() -> None:
    # e^tau + a tau = s gives tau = s/a - W(exp(s/a) / a)
    for time in (0.01, 1.0, 30.0):
        a, s = 9, 1 + 100 / 9 * 0.3 * time
        expected = s / a - lambertw(math.exp(s / a) / a).real
        assert float(free_feature_gap(0.3, time, 10)) == pytest.approx(expected, rel=1e-12)


def test_gap_broadcasts_starts_at_zero_and_grows() -> None:
    gap = free_feature_gap(np.array([[0.1], [1.0]]), torch.tensor([0.0, 1.0, 10.0]), 10)
    assert gap.shape == (2, 3)
    assert gap[:, 0].tolist() == [0, 0]
    assert bool((gap.diff(dim=1) > 0).all())


def test_flow_of_the_features_themselves() -> None:
    """Gradient flow of the whole feature vector, from 0, against the scalar equation."""
    head = 1.5 * simplex_etf(5, 6, seed=1).numpy()
    label, kappa = 2, 0.3

    def slope(_: float, h: np.ndarray) -> np.ndarray:
        p = softmax(head @ h)
        return kappa * head.T @ (np.eye(5)[label] - p)

    times = [0.5, 5.0, 200.0]
    path = solve_ivp(slope, (0, 200), np.zeros(6), t_eval=times, rtol=1e-10, atol=1e-12).y
    logits = head @ path
    gaps = logits[label] - np.delete(logits, label, 0)
    expected = free_feature_gap(kappa, times, 5, omega=1.5).numpy()
    np.testing.assert_allclose(gaps, np.broadcast_to(expected, gaps.shape), rtol=1e-7)


@pytest.mark.parametrize("reduction", ["sample", "class"])
def test_stopped_weights_freeze_ratios_or_drive_them_apart(reduction: str) -> None:
    """Weights L_bar / L_c without gradient, as a flow of the gaps; alpha = 0."""
    counts = np.array([50.0, 20.0, 5.0])
    classes = len(counts)
    per_sample = 1 / counts.sum() if reduction == "sample" else 1 / (classes * counts)

    def log_loss(gap: np.ndarray) -> np.ndarray:
        return np.log(np.logaddexp(0, math.log(classes - 1) - gap))

    def slope(log_time: float, gap: np.ndarray) -> np.ndarray:
        loss = np.exp(log_loss(gap))
        kappa = per_sample * loss.mean() / loss
        speed = kappa * -np.expm1(-loss) * classes**2 / (classes - 1) ** 2
        return math.exp(log_time) * speed

    path = solve_ivp(slope, (0, 14), np.zeros(3), t_eval=[8, 11, 14], method="LSODA", rtol=1e-9, atol=1e-9).y
    spread = np.ptp(log_loss(path), axis=0)
    if reduction == "sample":
        assert spread == pytest.approx(0, abs=1e-6)  # equal weights and equal starts: never apart
    else:
        assert spread[1] > spread[0] + 1
        assert spread[2] > spread[1] + 1


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="finite and at least 0"):
        free_feature_gap(-1.0, 1.0, 10)
    with pytest.raises(ValueError, match="finite and at least 0"):
        free_feature_gap(1e300, 1e300, 10)
    with pytest.raises(ValueError, match="`time` must be positive"):
        free_feature_flow([3, 1, 1], 0.0)
    with pytest.raises(ValueError, match="`objective` must be one of ce, class_mean"):
        free_feature_flow([3, 1, 1], 1.0, objective="macro")
    with pytest.raises(ValueError, match="Class 1 has 0 images"):
        free_feature_flow([3, 0, 1], 1.0)
