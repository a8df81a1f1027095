"""What an eigensolver says to operators that are none, and to arguments that mean nothing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from small_curvature import normal, with_spectrum
from torch import Tensor

from lt_lib.curvature import lanczos, spectral_density

DIAGONAL = torch.linspace(-3, 5, 50, dtype=torch.float64)


class Function:
    """An operator that does whatever a function does."""

    def __init__(self, function: Callable[[Tensor], object], dtype: torch.dtype = torch.float64) -> None:
        self.function, self.size, self.dtype, self.device = function, 50, dtype, torch.device("cpu")

    def matvec(self, v: Tensor):
        return self.function(v)


SOLVERS = pytest.mark.parametrize(
    "solve", [lambda operator: lanczos(operator, 3), lambda operator: spectral_density(operator, 2, 8)]
)


@SOLVERS
@pytest.mark.parametrize("skew", [1.0, 0.02])
def test_an_operator_that_is_not_symmetric_is_found_out(solve, skew):
    a = normal(50, 50)
    matrix = (a + a.T) / 2 + skew * (a - a.T) / 2
    with pytest.raises(ValueError, match="must be symmetric"):
        solve(Function(lambda v: matrix @ v))


@SOLVERS
def test_an_operator_that_is_another_at_every_product_is_found_out(solve):
    noise = torch.Generator().manual_seed(0)

    def product(v: Tensor) -> Tensor:  # symmetric every time, as a network with its own noise is
        return (DIAGONAL + 0.1 * torch.randn(50, generator=noise, dtype=torch.float64)) * v

    with pytest.raises(ValueError, match="the same at every product"):
        solve(Function(product))


@SOLVERS
@pytest.mark.parametrize(
    ("product", "message"),
    [
        (lambda v: (DIAGONAL * v)[1:], r"shape \(50,\).*found torch.float64 of shape \(49,\)"),
        (lambda v: (DIAGONAL * v)[:, None], r"shape \(50, 1\)"),
        (lambda v: (DIAGONAL * v).numpy(), "found ndarray"),
        (lambda v: None, "found NoneType"),
        (lambda v: DIAGONAL * v + 0j, "complex128"),
        (lambda v: DIAGONAL * v * float("inf"), "must be finite; number 1 has 50 NaN"),
        (lambda v: DIAGONAL * v * 1e-200, "Rescale the operator"),
        (lambda v: DIAGONAL * v * 1e200, "Rescale the operator"),
    ],
)
def test_products_that_are_no_vectors_get_a_sentence(solve, product, message):
    with pytest.raises(ValueError, match=message):
        solve(Function(product))


def test_products_that_carry_a_graph_leave_it_behind():
    weight = DIAGONAL.clone().requires_grad_()
    pairs = lanczos(Function(lambda v: weight * v), 3)
    assert not pairs.vectors.requires_grad
    assert torch.equal(pairs.values, lanczos(Function(lambda v: DIAGONAL * v), 3).values)


def test_a_state_of_another_operator_is_found_out_at_the_next_product():
    states = []
    lanczos(with_spectrum(np.linspace(0, 10, 60)), 3, callback=lambda p: states.append(p.state()))
    other = with_spectrum(np.linspace(0, 20, 60), seed=4)
    with pytest.raises(ValueError, match="`resume` from a run of another"):
        lanczos(other, 3, resume=states[4])
    del states[4]["t"]
    with pytest.raises(ValueError, match="`resume` must be what"):
        lanczos(other, 3, resume=states[4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 2.5}, "`k` must be a whole number"),
        ({"seed": None}, "`seed` must be a whole number"),
        ({"k": True}, "`k` must be a whole number"),
        ({"max_products": 3.5}, "`max_products` must be a whole number"),
        ({"max_memory": "8GiB"}, "`max_memory` must be a number of bytes; found '8GiB'"),
        ({"basis_dtype": "bfloat16"}, "`basis_dtype` must be a dtype"),
        ({"start": torch.full((50,), 1e-40)}, "not zero"),
        ({"resume": 5}, "`resume` must be what `Progress.state"),
        ({"max_products": float("nan")}, "max_products"),
        ({"basis_dtype": torch.int32}, "`basis_dtype`"),
        ({"start": torch.stack([DIAGONAL, -DIAGONAL])}, "cancel"),
    ],
)
def test_arguments_that_mean_nothing_get_a_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        lanczos(Function(lambda v: DIAGONAL * v), **({"k": 3} | change))


def test_memory_may_be_a_float_and_a_start_of_whole_numbers():
    operator = with_spectrum(np.linspace(0, 10, 60))
    pairs = lanczos(operator, 3, max_memory=6e3, start=torch.ones(60, dtype=torch.int64))
    torch.testing.assert_close(pairs.values, operator_top(operator, 3), rtol=1e-5, atol=0)


def operator_top(operator, k: int) -> Tensor:
    return torch.linalg.eigvalsh(operator.matrix).flip(0)[:k]
