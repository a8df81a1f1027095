"""Theorem T1: the printed values, and every inequality on random networks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from lt_lib.collapse import (
    EqualLoss,
    bound_terms,
    deviation_bound,
    first_order_bound,
    free_feature_flow,
    free_feature_gap,
    logit_scale,
    neural_collapse,
    perfect_loss,
    required_deviation,
    simplex_etf,
)

C = 10
P = torch.eye(C, dtype=torch.float64) - 1 / C
EACH = torch.arange(C)


@pytest.mark.parametrize("value", [0.1, 12345.678])
def test_means_that_coincide_to_rounding_have_no_logit_scale(value: float) -> None:
    features = torch.full((30_000, 4), value, dtype=torch.float64)
    with pytest.raises(ValueError, match="The logit scale is 0"):
        bound_terms(features, torch.arange(3).repeat(10_000), torch.eye(3, 4))


def offset_case() -> EqualLoss:
    return bound_terms(P, EACH, 5 * P, 0.2 * torch.eye(C, dtype=torch.float64)[0])


def length_case() -> EqualLoss:
    sign = torch.where(EACH < 5, 1.0, -1.0).double()
    return bound_terms((1 + 0.01 * sign)[:, None] * P, EACH, 5 * P)


def test_values_of_the_offset_case() -> None:
    t = offset_case()
    assert t.tau == pytest.approx(5, abs=1e-12)
    assert (t.delta2, t.delta3, t.delta_b) == pytest.approx((0, 0, 0.04), abs=1e-12)
    assert (t.delta, t.delta_limit) == pytest.approx((0.04, 0.04), abs=1e-12)
    assert t.std == pytest.approx(0.003547, abs=5e-7)
    assert (t.first_term, t.total) == pytest.approx((0.011435, 0.015935), abs=5e-7)
    assert (t.rho, t.required_gap_deviation) == pytest.approx((0.060021, 0.059985), abs=5e-7)
    assert t.gap_deviation == pytest.approx(0.2, abs=1e-12)
    assert t.log_ratio == pytest.approx(0.218337, abs=5e-7)
    assert t.class_loss[:2].tolist() == pytest.approx([0.048456, 0.060279], abs=5e-7)


def test_values_of_the_length_case() -> None:
    t = length_case()
    assert t.tau == pytest.approx(5.000222, abs=5e-7)
    assert (t.delta2, t.delta3, t.delta_b) == pytest.approx((0.018852, 0.009428, 0.003333), abs=5e-7)
    assert (t.delta, t.delta_limit) == pytest.approx((0.010000, 0.031878), abs=5e-7)
    assert (t.std, t.first_term, t.total) == pytest.approx((0.0028597, 0.0028581, 0.0031419), abs=5e-8)
    assert (t.rho, t.required_gap_deviation) == pytest.approx((0.048518, 0.048499), abs=5e-7)
    assert (t.gap_deviation, t.log_ratio) == pytest.approx((0.050222, 0.097112), abs=5e-7)
    assert t.class_loss[[0, 9]].tolist() == pytest.approx([0.056082, 0.061801], abs=5e-7)
    # tight to 10 % and to 4 %
    assert 1 < t.total / t.std < 1.10
    assert 1 < 2 * t.gap_deviation / t.log_ratio < 1.04


def test_counter_example_e1_collapse_without_equal_losses() -> None:
    f = torch.eye(3, dtype=torch.float64) - 1 / 3
    features, weight = f + f[0] / 2, 4 * f
    found = neural_collapse(features, torch.arange(3), weight)
    assert (found.nc1, found.nc2, found.nc3) == pytest.approx((0, 0, 0), abs=1e-14)
    loss = bound_terms(features, torch.arange(3), weight).class_loss
    assert loss.tolist() == pytest.approx([0.004945, 0.142932, 0.142932], abs=5e-7)
    # exactly when the offset vanishes too, the losses are equal: (i)
    mended = bound_terms(features, torch.arange(3), weight, -weight @ f[0] / 2)
    assert mended.delta_b == pytest.approx(0, abs=1e-14)
    np.testing.assert_allclose(mended.class_loss, mended.perfect, rtol=1e-14)


def test_counter_example_e2_equal_losses_without_collapse() -> None:
    corners = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64)
    found = neural_collapse(corners, torch.arange(4), 3 * corners)
    assert (found.nc1, found.nc3) == pytest.approx((0, 0), abs=1e-14)
    assert found.nc2 == pytest.approx(0.605811, abs=5e-7)
    loss = bound_terms(corners, torch.arange(4), 3 * corners).class_loss
    np.testing.assert_allclose(loss, math.log(1 + 2 * math.exp(-3) + math.exp(-6)), rtol=1e-14)
    assert float(loss[0]) == pytest.approx(0.097175, abs=5e-7)


def near_collapse(seed: int, classes: int, dim: int, noise: float, scale: float) -> tuple[Tensor, ...]:
    """Features, labels, weight and bias at a random distance from collapse (noise 0 is collapse)."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return noise * torch.randn(*shape, generator=g, dtype=torch.float64)

    labels = torch.arange(classes).repeat_interleave(torch.randint(1, 5, (classes,), generator=g))
    frame = simplex_etf(classes, max(dim, classes - 1), seed)[:, :dim]
    features = (frame + normal(classes, dim))[labels] + normal(len(labels), dim) + normal(dim)
    return features, labels, scale * (frame + normal(classes, dim)), scale * normal(classes)


@given(
    st.integers(0, 10**6),
    st.integers(3, 9),
    st.integers(2, 10),
    st.floats(1e-4, 1),
    st.floats(0.01, 5),
)
@settings(max_examples=50, deadline=None)
def test_every_inequality_of_t1(seed: int, classes: int, dim: int, noise: float, scale: float) -> None:
    h, y, w, b = near_collapse(seed, classes, dim, noise, scale)
    t = bound_terms(h, y, w, b)
    slack = 1 + 1e-9
    assert t.std <= t.total * slack  # (ii)
    assert t.delta <= t.delta_limit * slack  # (iii)
    for factor in (0.3, 1.0, 2.0):  # (iv), for any logit scale
        tau = factor * t.tau
        limit = max_gap_deviation(h, y, w, b, tau)
        logs = (t.class_loss / perfect_loss(tau, classes)).log().abs()
        assert float(logs.max()) <= limit * slack + 1e-9
        assert math.asinh(t.rho) <= limit * slack + 1e-12
    assert t.best_gap_deviation <= t.gap_deviation * slack
    assert t.rho <= math.sinh(min(t.best_gap_deviation, 700)) * slack + 1e-12
    assert t.log_ratio <= 2 * t.best_gap_deviation * slack + 1e-12


def max_gap_deviation(h: Tensor, y: Tensor, w: Tensor, b: Tensor, tau: float) -> float:
    """Oracle of R(tau) by its definition, u_i = P z_i - tau f_y."""
    classes = len(w)
    p = torch.eye(classes, dtype=torch.float64) - 1 / classes
    u = (h @ w.T + b) @ p - tau * p[y]
    return float((u - u.gather(1, y[:, None])).abs().max())


@given(st.integers(0, 10**6), st.integers(3, 9), st.floats(1e-3, 1))
@settings(max_examples=30, deadline=None)
def test_terms_against_their_definitions_and_the_contrapositives(
    seed: int, classes: int, noise: float
) -> None:
    h, y, w, b = near_collapse(seed, classes, classes, noise, 4.0)
    t = bound_terms(h, y, w, b)
    logits = h @ w.T + b
    loss = torch.stack([cross_entropy(logits[y == c], y[y == c]) for c in range(classes)])
    assert t.class_loss.tolist() == pytest.approx(loss.tolist(), rel=1e-10)
    assert t.gap_deviation == pytest.approx(max_gap_deviation(h, y, w, b, t.tau), rel=1e-9)
    p = torch.eye(classes, dtype=torch.float64) - 1 / classes
    u = logits @ p - t.tau * p[y]
    square = torch.stack([u[y == c].square().sum(1).mean() for c in range(classes)])
    # mean square of u_i over a class = deviation of its mean + noise
    assert (t.class_deviation + t.class_noise).tolist() == pytest.approx(square.tolist(), rel=1e-9)
    found = neural_collapse(h, y, w, b)
    assert (t.tau, t.delta2, t.delta3, t.delta_b, t.noise) == pytest.approx(
        (found.logit_scale, found.nc2, found.nc3, found.offset, found.logit_noise), rel=1e-9
    )
    # some sample is at least arsinh(rho) / sqrt(2) from tau f_y
    assert float(u.norm(dim=1).max()) >= math.asinh(t.rho) / math.sqrt(2) - 1e-12
    # without noise: the least tau Delta that this rho needs
    means = torch.stack([h[y == c].mean(0) for c in range(classes)])
    quiet = bound_terms(means, torch.arange(classes), w, b)
    need = required_deviation(quiet.rho, quiet.mean_loss, quiet.tau, classes)
    assert need <= quiet.tau * quiet.delta * (1 + 1e-9)
    # and it solves the quadratic that it comes from
    q = 1 - quiet.p
    assert q * need + (classes - 1) / 8 * need**2 == pytest.approx(quiet.std, rel=1e-6)


def test_constant_one_of_the_first_term_is_sharp() -> None:
    ratios = []
    for size in (1e-2, 1e-3, 1e-4):
        lengths = 1 + size * torch.where(EACH < 5, 1.0, -1.0).double()
        t = bound_terms(lengths[:, None] * P, EACH, 5 * P)
        ratios.append(abs(t.std / t.first_term - 1))
    assert ratios[0] < 1e-3
    assert ratios[2] < 1e-6


def test_bound_in_the_usual_metrics() -> None:
    assert deviation_bound(0, 0, 0.04, 10) == pytest.approx(0.04)
    assert deviation_bound(1e-9, 0, 0, 10) == pytest.approx(1e-9, rel=1e-12)
    t2 = math.sqrt((1 - 0.3**2 / 2) ** -2 - 1)
    expected = t2 + 0.2 * math.sqrt(1 + 3 * t2) + 0.1
    assert deviation_bound(0.3, 0.2, 0.1, 10) == pytest.approx(expected, rel=1e-12)
    t = length_case()
    exact = (1 - t.p) * t.tau * (t.delta2 + t.delta3 + t.delta_b)
    assert first_order_bound(t.tau, t.delta2, t.delta3, t.delta_b, 10) == pytest.approx(exact, rel=1e-12)
    with pytest.raises(ValueError, match="below sqrt"):
        deviation_bound(1.5, 0, 0, 10)


@pytest.mark.parametrize("classes", [2, 10, 8142])
def test_perfect_loss_is_cross_entropy_at_equal_gaps_without_overflow(classes: int) -> None:
    for tau in (-3.0, 0.0, 5.0, 30.0):
        logits = torch.zeros(1, classes, dtype=torch.float64)
        logits[0, 0] = tau
        expected = float(cross_entropy(logits, torch.tensor([0])))
        assert float(perfect_loss(tau, classes)) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert float(perfect_loss(700.0, classes)) == pytest.approx((classes - 1) * math.exp(-700.0), rel=1e-9)
    assert float(perfect_loss(-1e4, classes)) == pytest.approx(1e4 + math.log(classes - 1))
    assert perfect_loss([0.0, 1.0], classes).shape == (2,)


def test_logit_scale_is_the_gap_at_collapse() -> None:
    frame = simplex_etf(6, 8)
    assert logit_scale(3 * frame + 1, 2 * frame - 5) == pytest.approx(6 * 6 / 5)


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="Class 3 has 0 images"):
        bound_terms(P[:3], EACH[:3], P)
    with pytest.raises(ValueError, match=r"found \(10, 10\), \(9,\) and \(10, 10\)"):
        bound_terms(P, EACH[:9], P)
    with pytest.raises(ValueError, match="logit scale is 0"):
        bound_terms(torch.zeros(C, C), EACH, P)
    with pytest.raises(ValueError, match=r"0\.\.9; found 10"):  # guards D6
        bound_terms(P, EACH + 1, P)
    with pytest.raises(ValueError, match="`bias` must hold one number for each of the 10 classes"):
        bound_terms(P, EACH, P, torch.zeros(3))


def test_a_bound_beyond_float64_is_infinite() -> None:
    found = bound_terms(100 * P, EACH, 100 * P, 2000 * torch.eye(C, dtype=torch.float64)[0])
    assert found.gap_deviation > 711
    assert found.rho_limit == math.inf


def test_one_class_or_no_feature_is_one_sentence() -> None:
    alone, one = torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)
    for call in (
        lambda: bound_terms(alone, one, alone),
        lambda: logit_scale(alone, alone),
        lambda: perfect_loss(1.0, 1),
        lambda: deviation_bound(0.1, 0.1, 0.0, 1),
        lambda: first_order_bound(1.0, 0.1, 0.1, 0.0, 1),
        lambda: required_deviation(0.1, 1.0, 1.0, 1),
        lambda: free_feature_gap(1.0, 1.0, 1),
        lambda: free_feature_flow([5], 1.0),
    ):
        with pytest.raises(ValueError, match="`classes` must be at least 2; found 1"):
            call()
    with pytest.raises(ValueError, match="`dim` must be at least 1; found 0"):
        bound_terms(torch.ones(2, 0), torch.arange(2), torch.ones(2, 0))
    with pytest.raises(ValueError, match="`weight` must hold numbers in a tensor"):
        bound_terms(P, EACH, "P")


def test_arrays_and_lists_serve_as_tensors_do() -> None:
    expected = bound_terms(P, EACH, 5 * P, 0.2 * P[0])
    for turn in (Tensor.numpy, Tensor.tolist):
        found = bound_terms(*(turn(t) for t in (P, EACH, 5 * P, 0.2 * P[0])))
        assert found.rho == expected.rho
