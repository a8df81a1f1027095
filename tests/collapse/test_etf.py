import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.collapse import nc2_floor, neural_collapse, simplex_etf
from lt_lib.collapse.etf import helmert


@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (3, 2), (4, 3), (4, 16), (10, 9), (10, 10), (100, 128)])
def test_gram_matrix_is_that_of_a_simplex_etf(classes: int, dim: int) -> None:
    frame = simplex_etf(classes, dim, seed=3).numpy()
    gram = (classes * np.eye(classes) - 1) / (classes - 1)
    assert frame.shape == (classes, dim)
    assert frame.dtype == np.float64
    np.testing.assert_allclose(frame @ frame.T, gram, atol=1e-13)
    np.testing.assert_allclose(frame.sum(0), 0, atol=1e-13)


def test_four_classes_have_cosine_minus_one_third() -> None:
    frame = simplex_etf(4, 16)
    assert float(frame[0] @ frame[1]) == pytest.approx(-1 / 3, abs=1e-14)


def test_frame_depends_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = simplex_etf(5, 7, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(first, simplex_etf(5, 7, seed=1))
    assert torch.equal(first, simplex_etf(5, 7, seed=torch.Generator().manual_seed(1)))
    assert not torch.allclose(first, simplex_etf(5, 7, seed=2))


@given(st.integers(2, 40))
@settings(max_examples=20, deadline=None)
def test_helmert_columns_are_an_orthonormal_basis_of_the_hyperplane(classes: int) -> None:
    basis = helmert(classes).numpy()
    np.testing.assert_allclose(basis.T @ basis, np.eye(classes - 1), atol=1e-13)
    np.testing.assert_allclose(basis.sum(0), 0, atol=1e-13)


def test_too_few_dimensions_is_an_error_that_names_the_floor() -> None:
    with pytest.raises(ValueError, match=r"at least 99 for a simplex ETF of 100 classes; found 64.*0\.62605"):
        simplex_etf(100, 64)
    with pytest.raises(ValueError, match="at least 2; found 1"):
        simplex_etf(1, 3)


@pytest.mark.parametrize(
    ("classes", "dim", "floor"), [(100, 64, 0.62605), (8142, 2048, 0.99844), (1000, 512, 0.75379)]
)
def test_dimension_floor_has_the_values_of_theorem_t1(classes: int, dim: int, floor: float) -> None:
    assert nc2_floor(classes, dim) == pytest.approx(floor, abs=5e-6)
    assert nc2_floor(classes, classes - 1) == 0


def test_a_centred_tight_frame_attains_the_floor_and_random_means_do_not_beat_it() -> None:
    # any d columns of an orthonormal basis of the hyperplane are a centred tight frame
    tight = helmert(12)[:, :5]
    assert neural_collapse(tight, torch.arange(12)).nc2 == pytest.approx(nc2_floor(12, 5), abs=1e-12)
    drawn = torch.randn(50, 12, 5, generator=torch.Generator().manual_seed(0))
    assert all(neural_collapse(h, torch.arange(12)).nc2 > nc2_floor(12, 5) for h in drawn)
