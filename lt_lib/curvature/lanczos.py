"""Leading eigenpairs by Lanczos, stopped by residuals, restarted within a memory cap, checked for copies.

Numerical policy. Each new vector is made orthogonal to all earlier ones twice (classical Gram-Schmidt, four
matrix-vector products), so no ghost values appear (Paige 1976). The projected matrix is kept whole in
float64, not only its three diagonals, so that thick restarts (Wu and Simon 2000), locked vectors and fresh
starts need no case of their own. A remainder below `floor_of` of the operator's norm is rounding: the space
is invariant, and a random vector orthogonal to everything continues.

One start vector sees each eigenspace once, its copies by rounding at best. With `multiplicities=True`, and
always after an invariant space or two equal values, the run ends only when a fresh random start orthogonal
to the pairs found adds nothing before the k-th.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_choice, check_whole
from lt_lib.curvature.eigenpairs import Eigenpairs, as_start, warn_unconverged
from lt_lib.curvature.krylov import Krylov
from lt_lib.curvature.operators import Operator, check_dtype
from lt_lib.curvature.refine import refine
from lt_lib.curvature.ritz import WHICH, angle_bounds
from lt_lib.curvature.search import Progress, Search

FLOAT32_TOL = 1e-4
MAX_MEMORY = 8 * 2**30


def lanczos(
    operator: Operator,
    k: int,
    tol: float = 1e-3,
    which: str = "LA",
    seed: int = 0,
    start: Any = None,
    max_products: int | None = None,
    multiplicities: bool = False,
    max_memory: int = MAX_MEMORY,
    basis_dtype: torch.dtype | None = None,
    basis_device: str | torch.device | None = None,
    callback: Callable[[Progress], None] | None = None,
    resume: Mapping[str, Tensor] | None = None,
) -> Eigenpairs:
    """Return the k leading eigenpairs of a symmetric operator.

    The run stops at the first product after which every wanted pair has ||A q - value q|| <= tol * |value|,
    and the Ritz value after the k-th is clear of it or known to 5 % (one still climbing past the k-th would
    otherwise be missed).
    Pairs that have not got there by `max_products` are returned with a warning and `converged` False.
    Everything random follows from `seed`.

    Args:
        operator: anything with `size`, `dtype` (float32 or float64), `device` and `matvec`.
        k: number of pairs.
        tol: relative residual; at least 1e-4 in float32.
        which: "LA" largest, "SA" smallest, "LM" largest in magnitude.
        seed: of the start vector, and of fresh starts.
        start: vector (P,), rows (j, P) or earlier `Eigenpairs`, whose sum starts the run (of pairs with
            weights 1 / |value|); None: random, half of it along the loss's gradient if the operator has a
            `gradient()` to ask for.
        max_products: None: 20 k + 200, or what the size makes enough.
        multiplicities: whether to check for completeness: end with a fresh start orthogonal to the pairs
            found, and go on while it finds another before the k-th. Costs about as many products as one pair
            takes, once and for each copy.
        max_memory: bytes that the basis may take; thick restarts keep within it.
        basis_dtype: of the stored basis, None for the operator's. bfloat16 halves the memory; two more
            products a pair then restore and certify the vectors in the operator's dtype, to residuals of
            about 1e-4 but not much below.
        basis_device: of the stored basis, None for the operator's.
        callback: called after each product with a `Progress`, whose `state()` can be saved (for a large
            basis by `torch.save(progress.state(copy=False), file)`).
        resume: such a state: the run goes on as if it had not stopped, with the same arguments.

    Raises:
        ValueError: an argument is out of range, the operator is of half precision or gives NaN, the memory
            does not hold k + 2 vectors, products show that the operator is not symmetric, or `resume` is of
            another problem (another operator of the same size shows at the next product; the state of a run
            that had ended takes none and is not checked).
    """
    _check(operator, k, tol, which, seed, max_products, basis_dtype)
    dtype = basis_dtype or operator.dtype
    rows = _capacity(operator, k, max_memory, dtype)
    device = torch.device(basis_device) if basis_device is not None else operator.device
    krylov = Krylov(operator, dtype, device, seed)
    search = Search(krylov, k, tol, which, rows, max_products or 20 * k + 200, multiplicities)
    if resume is not None:
        search.load(resume)
        resume = None  # a state mapped from a file counts as memory while anyone holds it
    else:
        krylov.begin(None if start is None else as_start(start, operator.size))
    search.run(callback)
    pairs = _collect(search)
    if torch.finfo(dtype).eps > torch.finfo(operator.dtype).eps:
        pairs = replace(refine(operator, pairs), rounded=True)
    return warn_unconverged(pairs)


def _collect(search: Search) -> Eigenpairs:
    ritz, k, krylov = search.ritz, min(search.k, len(search.ritz.values)), search.krylov
    residuals = ritz.relative(search.tol)[:k]
    krylov.basis.rotate(ritz.weights[:, :k])
    return Eigenpairs(
        values=ritz.values[:k],
        vectors=krylov.basis.release(krylov.operator.device),
        residuals=residuals,
        converged=residuals <= search.tol,
        angles=angle_bounds(ritz.values[:k], ritz.errors[:k], ritz.values[k:]),
        matvecs=krylov.products,
        tol=search.tol,
        which=search.which,
        verified=False,
        complete=search.complete,
        miss_probability=search.missed if search.complete else None,
    )


def _check(
    operator: Operator,
    k: int,
    tol: float,
    which: str,
    seed: int,
    max_products: int | None,
    basis_dtype: torch.dtype | None,
) -> None:
    check_choice(which, WHICH, "which")
    check_dtype(operator.dtype, "operator.dtype")
    for name, value in {"k": k, "seed": seed}.items():
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError(f"`{name}` must be a whole number; found {value!r}.")
    if not 1 <= k <= operator.size:
        raise ValueError(f"`k` must be 1..{operator.size}, the operator's size; found {k}.")
    if not isinstance(tol, Real) or not 0 < tol < 1:
        raise ValueError(f"`tol` must lie between 0 and 1; found {tol!r}.")
    if operator.dtype == torch.float32 and tol < FLOAT32_TOL:
        raise ValueError(
            f"`tol` must be at least {FLOAT32_TOL:g} in float32, whose products are exact to about 5e-5 of a "
            f"spike; found {tol:g}. Convert the model to float64 for more digits."
        )
    if basis_dtype is not None and not getattr(basis_dtype, "is_floating_point", False):
        raise ValueError(f"`basis_dtype` must be a dtype of real numbers; found {basis_dtype!r}.")
    if max_products is not None and not check_whole(max_products, "max_products") >= k:
        raise ValueError(f"`max_products` must be at least `k` = {k}; found {max_products}.")


def _capacity(operator: Operator, k: int, memory: int, dtype: torch.dtype) -> int:
    """Return how many rows the basis may have: what restarts want, or what the memory holds."""
    if not isinstance(memory, Real):
        raise ValueError(f"`max_memory` must be a number of bytes; found {memory!r}.")
    wanted = min(operator.size, max(4 * k, k + 64))
    each = operator.size * dtype.itemsize
    rows = int(min(wanted, memory // each))
    if rows < min(operator.size, k + 2):
        raise ValueError(
            f"`max_memory` of {memory / 2**30:.3g} GiB holds {rows} vectors of {each / 2**20:.3g} MiB, but "
            f"{k} pairs need at least {k + 2}, better {wanted}. Raise it, keep the basis on the CPU "
            '(`basis_device="cpu"`) or in half the memory (`basis_dtype=torch.bfloat16`), or ask for fewer '
            "pairs and deflate."
        )
    return rows
