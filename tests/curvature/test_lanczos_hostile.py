"""Copies of eigenvalues, rounded bases, callbacks and deflation: what a hostile user tried."""

import numpy as np
import pytest
import torch
from small_curvature import with_spectrum

from lt_lib.curvature import deflate, lanczos


def exactly(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_copy_that_has_just_converged_is_taken_for_one():
    for seed in range(12):  # its value is still off by residual^2 / gap, far above rounding
        pairs = lanczos(with_spectrum([2.0, 2.0, 2.0, *np.linspace(0.1, 1, 57)], seed=seed), 3)
        torch.testing.assert_close(pairs.values, exactly(2.0, 2.0, 2.0), rtol=1e-5, atol=0)
        assert pairs.complete


def test_near_values_that_are_told_apart_are_no_copies():
    pairs = lanczos(with_spectrum([2.02, 2.0, *np.linspace(0.1, 1, 57)]), 2)
    assert pairs.complete is None


def test_what_a_rounded_basis_cannot_reach_is_said_so():
    operator = with_spectrum([10, 9, 8, 7, 6.5, 6, *np.linspace(-0.5, 1, 294)])
    with pytest.warns(UserWarning, match="Raise `tol`, or keep the basis unrounded"):
        pairs = lanczos(operator, 6, 1e-6, basis_dtype=torch.bfloat16, max_products=60)
    assert not bool(pairs.converged.all())


def test_a_callback_cannot_change_the_result():
    operator = with_spectrum([3.0, 2.0, *np.linspace(-0.5, 1, 30)])
    pairs = lanczos(operator, 2, callback=lambda progress: progress.values.zero_())
    assert torch.equal(pairs.values, lanczos(operator, 2).values)


def test_deflation_takes_eigenpairs():
    operator = with_spectrum([3.0, 2.0, 1.5, *np.linspace(-0.5, 1, 30)])
    pairs = lanczos(operator, 2)
    torch.testing.assert_close(lanczos(deflate(operator, pairs), 1).values, exactly(1.5), rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="must be a tensor or eigenpairs; found list"):
        deflate(operator, [1.0])
