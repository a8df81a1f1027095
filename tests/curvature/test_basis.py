"""Inner products of a Krylov basis against float64, at sizes around those of the short sums."""

import pytest
import torch

from lt_lib.curvature.basis import SHORT, Basis, products


@pytest.mark.parametrize("size", [1, SHORT - 1, SHORT, SHORT + 1, 50 * SHORT + 7])
def test_short_sums_lose_nothing_that_float32_rows_hold(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.nn.functional.normalize(torch.rand(5, size, generator=generator))  # one sign: sums grow
    w = torch.nn.functional.normalize(torch.rand(size, generator=generator), dim=0)
    found = products(rows, w)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, rows.double() @ w.double(), rtol=0, atol=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coefficients_belong_to_the_rows_as_stored(dtype: torch.dtype) -> None:
    size, generator = 3 * SHORT + 11, torch.Generator().manual_seed(0)
    basis = Basis(size, dtype, torch.device("cpu"), torch.float32)
    rows = [basis.append(torch.randn(size, generator=generator) / size**0.5) for _ in range(18)]
    w = torch.randn(size, generator=generator)
    exact = torch.stack(rows).double() @ w.double()
    torch.testing.assert_close(basis.coefficients(w), exact, rtol=1e-6, atol=1e-5)
    left = basis.subtract(w.clone(), basis.coefficients(w))
    torch.testing.assert_close(
        left.double(), w.double() - exact @ torch.stack(rows).double(), rtol=0, atol=2e-5
    )
