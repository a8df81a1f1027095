"""Eigenpairs of matrices whose spectrum is known: separated, degenerate, spiked, indefinite, restarted."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_curvature import normal, with_spectrum

from lt_lib.curvature import (
    Eigenpairs,
    MatrixOperator,
    UnconvergedWarning,
    deflate,
    lanczos,
    verify,
)

DOUBLE_AND_SINGLE = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
BULK = np.linspace(0, 1, 150)
COLLAPSED_HEAD = [0.2075276] * 9 + [0.044444] + [0.0214162] * 9 + [0.00493827] * 71 + [0.0] * 120
DEGENERATE = {
    "identity": ([1.0] * 40, 3, [1, 1, 1]),
    "zero": ([0.0] * 40, 2, [0, 0]),
    "rank one": ([3.0] + [0.0] * 40, 1, [3]),
    "rank one, two asked": ([3.0] + [0.0] * 40, 2, [3, 0]),
    "two values": ([3.0] * 5 + [1.0] * 40, 7, [3] * 5 + [1] * 2),
    "nine equal spikes": ([10.0] * 9 + [*BULK], 9, [10] * 9),
    "collapsed head, ten": (COLLAPSED_HEAD, 10, COLLAPSED_HEAD[:10]),
    "collapsed head, all spikes": (COLLAPSED_HEAD, 19, COLLAPSED_HEAD[:19]),
}


def exactly(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_orthonormal(pairs: Eigenpairs) -> None:
    gram = pairs.vectors.double() @ pairs.vectors.double().T
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64), rtol=0, atol=2e-6)


@DOUBLE_AND_SINGLE
def test_both_ends_of_a_wishart_matrix(dtype):
    z = normal(40, 40)
    matrix = (z @ z.T / 40 - 0.5 * torch.eye(40)).to(dtype)
    exact = torch.linalg.eigvalsh(matrix.double())
    for which, expected in {"LA": exact.flip(0), "SA": exact}.items():
        pairs = verify(MatrixOperator(matrix), lanczos(MatrixOperator(matrix), 5, which=which))
        torch.testing.assert_close(pairs.values, expected[:5], rtol=1e-5, atol=1e-6)
        assert_orthonormal(pairs)
        assert bool(pairs.converged.all())
        assert pairs.verified


def test_largest_magnitude_takes_both_signs():
    pairs = lanczos(with_spectrum([-8.0, 5.0, -4.0, *BULK]), 3, which="LM")
    torch.testing.assert_close(pairs.values, exactly(-8.0, 5.0, -4.0), rtol=1e-4, atol=0)


@DOUBLE_AND_SINGLE
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_spectra_come_with_their_multiplicities(name, dtype):  # guards D30
    spectrum, k, expected = DEGENERATE[name]
    operator = with_spectrum(spectrum, dtype)
    pairs = lanczos(operator, k, multiplicities=True)
    expected = exactly(*expected)
    torch.testing.assert_close(pairs.values, expected, rtol=1e-4, atol=1e-6)
    assert_orthonormal(pairs)
    assert bool(pairs.converged.all())
    assert pairs.complete


@pytest.mark.parametrize("name", ["identity", "two values", "collapsed head, ten", "nine equal spikes"])
def test_copies_that_show_set_off_the_check_unasked(name):
    spectrum, k, expected = DEGENERATE[name]
    pairs = lanczos(with_spectrum(spectrum), k)
    torch.testing.assert_close(pairs.values, exactly(*expected), rtol=1e-4, atol=1e-6)
    assert pairs.complete


def test_a_start_that_misses_an_eigenvector_is_found_out():
    spectrum = [*range(10, 1, -1), *BULK]
    operator = with_spectrum(spectrum)
    values, vectors = torch.linalg.eigh(operator.matrix)
    start = vectors[:, values.argsort(descending=True)[[0, 1, 3, 4, 5]]].sum(1) + 1e-14 * normal(159)
    checked = lanczos(operator, 4, start=start, multiplicities=True)
    torch.testing.assert_close(checked.values, exactly(10.0, 9, 8, 7), rtol=1e-5, atol=0)
    assert checked.complete


def test_the_completeness_check_states_its_chance():
    pairs = lanczos(with_spectrum([*range(10, 1, -1), *BULK]), 9, multiplicities=True)
    assert pairs.complete
    assert 0 < pairs.miss_probability < 1e-3
    assert lanczos(with_spectrum([*range(10, 1, -1), *BULK]), 9).complete is None


def test_a_missed_spike_is_never_silent():
    spectrum = torch.tensor([*np.geomspace(300, 5, 9), *np.linspace(-1, 4, 400)])
    operator = with_spectrum(spectrum, torch.float32)
    with pytest.warns(UnconvergedWarning, match="did not converge"):
        pairs = lanczos(operator, 9, max_products=12)
    assert not bool(pairs.converged.all())
    assert pairs.matvecs == 12
    with pytest.raises(RuntimeError, match="max_products"):
        pairs.require_converged()
    # what the flag says is true: with the same residuals from products
    torch.testing.assert_close(verify(operator, pairs).residuals, pairs.residuals, rtol=0.05, atol=1e-5)
    pairs = lanczos(operator, 9).require_converged()
    torch.testing.assert_close(pairs.values, spectrum[:9].double(), rtol=1e-3, atol=0)


def test_spiked_random_matrix_law():
    z = normal(600, 600)
    matrix = z @ z.T / 600
    matrix.diagonal()[:3] += exactly(5.0, 4.0, 3.0)
    pairs = lanczos(MatrixOperator(matrix), 3)
    # n = 600: fluctuations of order 1 / sqrt(n) around theta + theta / (theta - 1)
    torch.testing.assert_close(pairs.values, exactly(6.25, 16 / 3, 4.5), rtol=0.06, atol=0)
    exact = torch.linalg.eigvalsh(matrix).flip(0)[:3]
    torch.testing.assert_close(pairs.values, exact, rtol=1e-5, atol=0)


def test_residuals_bound_errors_and_angles_bound_directions():
    operator = with_spectrum([*range(10, 1, -1), *BULK])
    exact, vectors = torch.linalg.eigh(operator.matrix)
    pairs = lanczos(operator, 5, tol=1e-2)
    error = (pairs.values - exact.flip(0)[:5]).abs() / pairs.values
    assert bool((error <= pairs.residuals + 1e-12).all())
    sine = (1 - (pairs.vectors * vectors.T.flip(0)[:5]).sum(1) ** 2).clamp(min=0).sqrt()
    assert bool((torch.asin(sine) <= pairs.angles + 1e-7).all())
    assert float(pairs.angles.max()) < 0.1


@DOUBLE_AND_SINGLE
def test_a_memory_cap_restarts_and_finds_the_same(dtype):
    operator = with_spectrum([*np.linspace(3, 1.2, 12), *BULK], dtype)
    free = lanczos(operator, 12)
    capped = lanczos(operator, 12, max_memory=20 * 162 * dtype.itemsize)
    torch.testing.assert_close(capped.values, free.values, rtol=1e-5, atol=0)
    assert capped.matvecs >= free.matvecs
    assert bool(verify(operator, capped).converged.all())


class Diagonal:
    """Many entries, so that sums in float32 lose digits."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, entries: torch.Tensor) -> None:
        self.entries, self.size = entries.float(), len(entries)

    def matvec(self, v: torch.Tensor) -> torch.Tensor:
        return self.entries * v


def test_residuals_in_float32_are_true_in_many_dimensions():
    entries = torch.cat([exactly(*np.geomspace(1500, 20, 9)), torch.linspace(-1, 8, 300_000).double()])
    operator = Diagonal(entries)
    pairs = lanczos(operator, 9)
    assert_orthonormal(pairs)
    exact = entries[:9].float().double()  # what the operator holds
    torch.testing.assert_close(pairs.values, exact, rtol=1e-5, atol=0)
    true = verify(operator, pairs).residuals
    assert bool((true <= 1e-3).all())
    assert bool((true <= pairs.residuals + 1e-6 * pairs.values[0] / pairs.values).all())


def test_restarts_and_fresh_starts_together():
    operator = with_spectrum([5.0, 5.0, 5.0, 4.0, *np.linspace(-1, 1.5, 150)])
    pairs = lanczos(operator, 4, max_memory=14 * 154 * 8, multiplicities=True)
    torch.testing.assert_close(pairs.values, exactly(5.0, 5, 5, 4), rtol=1e-5, atol=0)
    assert bool(verify(operator, pairs).converged.all())


def test_a_basis_in_bfloat16_gives_verified_pairs():
    operator = with_spectrum([*np.geomspace(300, 5, 9), *np.linspace(-0.5, 1, 800)], torch.float32)
    pairs = lanczos(operator, 9, basis_dtype=torch.bfloat16)
    full = lanczos(operator, 9)
    torch.testing.assert_close(pairs.values, full.values, rtol=1e-4, atol=0)
    assert bool(pairs.converged.all())
    assert pairs.verified
    assert pairs.vectors.dtype == torch.float32
    assert_orthonormal(pairs)


def test_a_warm_start_saves_products():
    before = with_spectrum([*np.geomspace(300, 5, 9), *np.linspace(-0.5, 2, 300)])
    noise = normal(309, 309, seed=5)
    after = MatrixOperator(before.matrix + 0.01 * (noise + noise.T) / math.sqrt(309))
    earlier = lanczos(before, 9)
    cold, warm = lanczos(after, 9), lanczos(after, 9, start=earlier)
    torch.testing.assert_close(warm.values, cold.values, rtol=1e-5, atol=0)
    assert warm.matvecs <= cold.matvecs
    assert warm.matvecs <= lanczos(after, 9, start=earlier.vectors).matvecs <= cold.matvecs
    # pairs without curvature are no reason to start from them alone
    flat = replace(earlier, values=torch.cat([earlier.values[:-1], torch.zeros(1)]))
    torch.testing.assert_close(lanczos(after, 9, start=flat).values, cold.values, rtol=1e-5, atol=0)
    for none in (replace(earlier, values=torch.zeros(9)), replace(earlier, values=-earlier.values)):
        torch.testing.assert_close(lanczos(after, 9, start=none).values, cold.values, rtol=1e-5, atol=0)


class _Leaning(MatrixOperator):
    """A matrix that names a vector as its loss's gradient."""

    def __init__(self, matrix: torch.Tensor, slope: torch.Tensor) -> None:
        super().__init__(matrix)
        self.slope = slope

    def gradient(self) -> torch.Tensor:
        return self.slope


def test_a_gradient_along_spikes_saves_products_and_one_orthogonal_to_them_hides_none():
    plain = with_spectrum([*np.geomspace(300, 5, 9), *np.linspace(-0.5, 2, 300)])
    values, vectors = torch.linalg.eigh(plain.matrix)
    cold = lanczos(plain, 9)
    for rows in (vectors.T[-9:].sum(0), vectors.T[-1], vectors.T[0], torch.zeros_like(vectors[0])):
        pairs = lanczos(_Leaning(plain.matrix, rows), 9)
        torch.testing.assert_close(pairs.values, values[-9:].flip(0), rtol=1e-5, atol=0)
    assert lanczos(_Leaning(plain.matrix, vectors.T[-9:].sum(0)), 9).matvecs < cold.matvecs
    none = lanczos(_Leaning(plain.matrix, torch.zeros_like(vectors[0])), 9)
    assert torch.equal(none.vectors, cold.vectors)  # no gradient: the random start
    given = lanczos(_Leaning(plain.matrix, vectors.T[0]), 9, start=vectors.T[-1])
    assert torch.equal(given.vectors, lanczos(plain, 9, start=vectors.T[-1]).vectors)  # a start goes before
    with pytest.raises(ValueError, match=r"`operator.gradient\(\)` must be a vector \(309,\)"):
        lanczos(_Leaning(plain.matrix, torch.ones(1)), 9)


def test_a_seed_fixes_every_bit():
    operator = with_spectrum(DEGENERATE["two values"][0], torch.float32)
    one, two, other = (lanczos(operator, 6, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.vectors, two.vectors)
    assert torch.equal(one.values, two.values)
    assert not torch.equal(one.vectors, other.vectors)


def test_deflation_leaves_the_rest_of_the_spectrum():
    operator = with_spectrum([*range(10, 1, -1), *BULK])
    first = lanczos(operator, 4, tol=1e-7)
    rest = deflate(operator, first.vectors * 3)
    torch.testing.assert_close(lanczos(rest, 3).values, exactly(6.0, 5, 4), rtol=1e-4, atol=0)
    v = normal(159, 2)
    assert float((first.vectors @ rest.matvec(v[:, 0])).abs().max()) < 1e-10
    torch.testing.assert_close(v[:, 0] @ rest.matvec(v[:, 1]), v[:, 1] @ rest.matvec(v[:, 0]))
    with pytest.raises(ValueError, match="independent"):
        deflate(operator, torch.cat([first.vectors, first.vectors[:1]]))


def test_sums_multiples_and_shifts():
    a, b = with_spectrum([3.0, 2.0, 1.0]), with_spectrum([0.5, 0.1, -2.0], seed=1)
    v = normal(3)
    expected = (2 * a.matrix - b.matrix + 0.5 * torch.eye(3, dtype=torch.float64)) @ v
    torch.testing.assert_close((2 * a - b).shift(0.5).matvec(v), expected)
    torch.testing.assert_close((a + b).matmat(torch.eye(3, dtype=torch.float64)), a.matrix + b.matrix)
    with pytest.raises(ValueError, match="agree in size"):
        a + with_spectrum([1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "`k` must be 1..50"),
        ({"k": 51}, "`k` must be 1..50"),
        ({"tol": 1e-5}, "float64 for more digits"),
        ({"tol": 0.0}, "between 0 and 1"),
        ({"tol": "1e-3"}, "between 0 and 1; found '1e-3'"),
        ({"which": "LR"}, "LA, LM, SA"),
        ({"max_products": 2}, "max_products"),
        ({"max_memory": 800}, "bfloat16"),
        ({"start": torch.ones(4)}, "start"),
        ({"start": torch.zeros(50)}, "not zero"),
        ({"resume": {}}, "resume"),
    ],
)
def test_bad_arguments_get_a_sentence(change, message):
    operator = with_spectrum(np.arange(50.0), torch.float32)
    with pytest.raises(ValueError, match=message):
        lanczos(operator, **({"k": 3} | change))


def test_matrices_that_are_not_symmetric_operators_get_a_sentence():
    for matrix, message in (
        (normal(3, 2), "square"),
        (normal(3, 3), "symmetric"),
        (torch.eye(2).half(), "float32"),
    ):
        with pytest.raises(ValueError, match=message):
            MatrixOperator(matrix)
