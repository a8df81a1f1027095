import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lt_lib.curvature.density import spectral_density
from lt_lib.curvature.lanczos import lanczos
from lt_lib.curvature.operators import MatrixOperator


class Dense:
    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.calls = matrix, 0
        self.size, self.dtype, self.device = len(matrix), matrix.dtype, matrix.device

    def matvec(self, v: Tensor) -> Tensor:
        self.calls += 1
        return self.matrix @ v


def symmetric(values: Tensor, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=g, dtype=torch.float64))
    return (q * values) @ q.T


def test_each_probe_is_exact_for_moments_up_to_2m_minus_1() -> None:
    matrix = symmetric(torch.linspace(-1, 2, 60).double())
    found = spectral_density(Dense(matrix), probes=3, steps=4, seed=7)
    g = torch.Generator().manual_seed(7)
    for nodes, weights in zip(found.nodes, found.weights, strict=True):
        v = torch.randn(60, generator=g, dtype=torch.float64)
        v = image = v / v.norm()
        assert float(weights.sum()) == pytest.approx(1, abs=1e-14)
        for power in range(1, 8):
            image = matrix @ image
            assert float((weights * nodes**power).sum()) == pytest.approx(float(v @ image), abs=1e-12)
        assert abs(float((weights * nodes**8).sum() - v @ matrix @ image)) > 1e-6  # not beyond


def test_as_many_steps_as_dimensions_give_the_eigenvalues_themselves() -> None:
    values = torch.tensor([-2.0, -0.5, 0.1, 1.0, 7.0]).double()
    found = spectral_density(Dense(symmetric(values)), probes=2, steps=5)
    torch.testing.assert_close(found.nodes, values.expand(2, 5), atol=1e-12, rtol=0)


def test_standard_errors_cover_trace_and_frobenius_norm() -> None:
    values = torch.linspace(0, 1, 200).double() ** 3
    matrix = symmetric(values, 3)
    hits = 0
    for seed in range(40):
        found = spectral_density(Dense(matrix), probes=8, steps=3, seed=seed)
        hits += abs(found.trace.value - float(values.sum())) <= 2.36 * found.trace.error  # t, 7 degrees, 95 %
        hits += abs(found.frobenius.value - float(values.norm())) <= 2.36 * found.frobenius.error
    assert 68 <= hits <= 80  # 76 expected
    many = spectral_density(Dense(matrix), probes=400, steps=2)
    theory = math.sqrt(2 * 200 / 202 * float(values.square().sum() - values.sum() ** 2 / 200) / 400)
    assert many.trace.error == pytest.approx(theory, rel=0.15)


def test_two_clusters_have_half_the_mass_each() -> None:
    values = torch.cat([torch.full((100,), 1.0), torch.full((100,), 5.0)]).double()
    operator = Dense(symmetric(values))
    found = spectral_density(operator, probes=10, steps=30)
    assert operator.calls == found.products == 20  # two distinct eigenvalues: each run ends after two steps
    low = found.count(0, 3)
    assert low.value == pytest.approx(100, abs=4 * low.error)
    curve = found.linear(width=0.1)
    peaks = [float(curve.grid[(curve.density * mask).argmax()]) for mask in (curve.grid < 3, curve.grid > 3)]
    assert peaks == pytest.approx([1, 5], abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identity_and_zero_end_after_one_step(dtype: torch.dtype) -> None:
    for scale in (1.0, 0.0):
        found = spectral_density(Dense(scale * torch.eye(50, dtype=dtype)), probes=2, steps=10)
        assert found.products == 2
        assert found.trace.value == pytest.approx(50 * scale, rel=1e-6)
        assert found.trace.error < 1e-4
        assert found.count(scale - 1e-6, scale + 1e-6).value == pytest.approx(50)
        assert np.isfinite(found.linear().density.numpy()).all()


def test_curves_integrate_to_the_share_of_eigenvalues() -> None:
    values = torch.cat(
        [-torch.rand(40, generator=torch.Generator().manual_seed(0)), 10.0 ** torch.linspace(-6, 1, 160)]
    )
    found = spectral_density(Dense(symmetric(values.double())), probes=6, steps=100)
    linear = found.linear(width=0.2)
    assert float(torch.trapezoid(linear.density, linear.grid)) == pytest.approx(1, abs=1e-3)
    for sign in (1, -1):
        curve = found.logarithmic(torch.linspace(-20, 3, 4000), width=0.2, sign=sign)
        own = found.count(0.0 if sign > 0 else -math.inf, math.inf if sign > 0 else 0.0).value / 200
        assert float(torch.trapezoid(curve.density, curve.grid)) == pytest.approx(own, abs=1e-3)
    assert found.count().value == pytest.approx(200)
    assert found.logarithmic().width == 0.1
    assert bool((curve.error >= 0).all())


def test_a_spike_is_a_bump_of_mass_one_over_p_at_the_right_place() -> None:
    values = torch.cat([torch.linspace(0, 1, 399), torch.tensor([30.0])]).double()
    found = spectral_density(Dense(symmetric(values)), probes=50, steps=20)
    spike = found.count(20, 40)
    assert spike.value == pytest.approx(1, abs=4 * spike.error)
    assert spike.error == pytest.approx(math.sqrt(2 / 50), rel=0.6)
    torch.testing.assert_close(found.nodes[:, -1], torch.full((50,), 30.0).double(), atol=1e-9, rtol=0)
    curve = found.linear(torch.tensor([0.5, 30.0]), width=0.3)
    assert float(curve.density[1]) < 0.01 * float(curve.density[0])


def test_known_pairs_enter_exactly_and_take_their_noise_away() -> None:
    values = torch.cat([torch.linspace(-0.5, 1, 397), torch.tensor([20.0, 30.0, 30.0])]).double()
    operator = Dense(symmetric(values))
    spikes = lanczos(MatrixOperator(operator.matrix), 3, tol=1e-10)
    blind, known = (spectral_density(operator, probes=40, steps=6, known=k) for k in (None, spikes))
    assert known.nodes.shape == (40, 9)
    torch.testing.assert_close(known.weights.sum(1), torch.ones(40).double())
    assert known.count(10, 40).value == pytest.approx(3)
    assert known.count(10, 40).error < 1e-12
    assert known.count().value == pytest.approx(400)
    assert known.trace.error < 0.35 * blind.trace.error
    assert known.trace.value == pytest.approx(float(values.sum()), abs=4 * known.trace.error)
    assert known.frobenius.value == pytest.approx(float(values.norm()), abs=4 * known.frobenius.error)
    assert known.frobenius.error < 0.1 * blind.frobenius.error
    poor = replace(spikes, converged=torch.tensor([True, False, True]))
    with pytest.raises(RuntimeError, match="Pair 1"):
        spectral_density(operator, known=poor)


def test_spiked_random_matrix_law() -> None:
    # outliers of diag(5, 4, 3, 0, ...) + Z Z^T / n stand at theta + theta / (theta - 1), the bulk ends at 4
    n, g = 600, torch.Generator().manual_seed(0)
    z = torch.randn(n, n, generator=g, dtype=torch.float64)
    matrix = z @ z.T / n
    matrix.diagonal()[:3] += torch.tensor([5.0, 4.0, 3.0])
    found = spectral_density(Dense(matrix), probes=4, steps=60)
    tops = found.nodes.flip(1)[:, :3].mean(0)
    assert tops.tolist() == pytest.approx([6.25, 16 / 3, 4.5], abs=0.25)
    assert found.count(0, 4.2).value == pytest.approx(n - 3, abs=4)
    middle = found.count(0, 1.0)  # Marchenko-Pastur at ratio one: 0.609 of the mass lies below 1
    assert middle.value / n == pytest.approx(0.6090, abs=0.03)


def test_half_the_digits_are_kept_in_float32() -> None:
    matrix = symmetric(torch.linspace(0, 3, 80).double())
    single = spectral_density(Dense(matrix.float()), probes=2, steps=40)
    double = spectral_density(Dense(matrix), probes=2, steps=40)
    assert single.trace.value == pytest.approx(double.trace.value, rel=1e-5)
    assert single.frobenius.value == pytest.approx(double.frobenius.value, rel=1e-5)
    assert float(single.nodes.max()) <= 3 * (1 + 1e-5)  # no ghost leaves the spectrum


def test_probes_depend_on_the_seed_alone_and_extend() -> None:
    operator = Dense(symmetric(torch.linspace(0, 1, 30).double()))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    two, five = (spectral_density(operator, probes=k, steps=6, seed=3) for k in (2, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(two.nodes, five.nodes[:2])
    assert not torch.equal(two.nodes, spectral_density(operator, probes=2, steps=6, seed=4).nodes)


def test_refusals() -> None:
    operator = Dense(torch.eye(5).double())
    with pytest.raises(ValueError, match=r"at least 2; found 1\. One probe has no error bar"):
        spectral_density(operator, probes=1)
    for steps in (1, 6):
        with pytest.raises(
            ValueError, match=rf"`steps` must be 2..5, the dimensions that are free; found {steps}"
        ):
            spectral_density(operator, steps=steps)
    with pytest.raises(ValueError, match="NaN or infinite"):
        spectral_density(Dense(torch.full((5, 5), math.nan)), steps=2)
    found = spectral_density(operator, steps=2)
    with pytest.raises(ValueError, match="`width`"):
        found.linear(width=0.0)
    with pytest.raises(ValueError, match="`sign`"):
        found.logarithmic(sign=0)


class Diagonal:
    """Many entries in float32, so that sums in float32 lose digits."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, entries: Tensor) -> None:
        self.entries, self.size = entries.float(), len(entries)

    def matvec(self, v: Tensor) -> Tensor:
        return self.entries * v


def test_moments_in_float32_are_true_in_many_dimensions() -> None:
    entries = torch.cat([torch.tensor([1500.0, 400.0]), torch.linspace(0, 8, 300_000)])
    found = spectral_density(Diagonal(entries), probes=2, steps=5, seed=1)
    g = torch.Generator().manual_seed(1)
    exact = entries.double()
    for nodes, weights in zip(found.nodes, found.weights, strict=True):
        v = torch.randn(len(entries), generator=g, dtype=torch.float64)
        v = v / v.norm()
        for power in (1, 2):  # float32 sums are off by 3e-6 and more
            moment = float((v.square() * exact**power).sum())
            assert float((weights * nodes**power).sum()) == pytest.approx(moment, rel=1e-6)
