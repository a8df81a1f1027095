"""Symmetric operators: a size, a dtype, a device and a product. Eigen-solvers ask for nothing else."""

from typing import Any, Protocol

import torch
from torch import Tensor

from lt_lib._checks import check_finite
from lt_lib.curvature.basis import products


class Operator(Protocol):
    """What every procedure of this package needs of an operator."""

    @property
    def size(self) -> int: ...  # noqa: D102

    @property
    def dtype(self) -> torch.dtype: ...  # noqa: D102

    @property
    def device(self) -> torch.device: ...  # noqa: D102

    def matvec(self, v: Tensor) -> Tensor: ...  # noqa: D102


class LinearOperator:
    """A symmetric operator with the algebra that curvature needs: sum, multiple, shift, deflation.

    Subclasses set `size`, `dtype`, `device` and define `_apply(v)`.
    """

    size: int
    dtype: torch.dtype
    device: torch.device

    def matvec(self, v: Tensor) -> Tensor:
        """Return A v, (P,), in the operator's dtype and on its device.

        Raises:
            ValueError: v is not of shape (P,).
        """
        if v.shape != (self.size,):
            raise ValueError(f"`v` must be of shape ({self.size},); found {tuple(v.shape)}.")
        return self._apply(v.detach().to(device=self.device, dtype=self.dtype))

    def matmat(self, vectors: Tensor) -> Tensor:
        """Return A V, (P, k), for k vectors as columns.

        Raises:
            ValueError: V is not of shape (P, k).
        """
        if vectors.ndim != 2 or len(vectors) != self.size:
            raise ValueError(f"`vectors` must be of shape ({self.size}, k); found {tuple(vectors.shape)}.")
        if vectors.shape[1] == 0:
            return torch.zeros(self.size, 0, dtype=self.dtype, device=self.device)
        return torch.stack([self.matvec(column) for column in vectors.T], 1)

    def _apply(self, v: Tensor) -> Tensor:
        raise NotImplementedError

    def __add__(self, other: "Operator") -> "SumOperator":
        return SumOperator(self, other)

    def __sub__(self, other: "Operator") -> "SumOperator":
        return SumOperator(self, other, 1.0, -1.0)

    def __mul__(self, factor: float) -> "ShiftedOperator":
        return ShiftedOperator(self, factor, 0.0)

    __rmul__ = __mul__

    def shift(self, amount: float) -> "ShiftedOperator":
        """Return A + amount * I."""
        return ShiftedOperator(self, 1.0, amount)


class MatrixOperator(LinearOperator):
    """A symmetric matrix (P, P) in float32 or float64.

    Raises:
        ValueError: no tensor, not square, not symmetric (beyond rounding), not finite, or of another dtype.
    """

    def __init__(self, matrix: Tensor) -> None:
        if not isinstance(matrix, Tensor):
            raise ValueError(f"`matrix` must be a tensor; found {type(matrix).__name__}.")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
            raise ValueError(f"`matrix` must be square; found shape {tuple(matrix.shape)}.")
        check_dtype(matrix.dtype, "matrix")
        check_finite(matrix, "matrix")
        apart = float((matrix - matrix.T).abs().max())
        if apart > 100 * torch.finfo(matrix.dtype).eps * float(matrix.abs().max()):
            raise ValueError(
                f"`matrix` must be symmetric; found entries {apart:.1e} apart. Pass `(A + A.T) / 2` if it "
                "should be."
            )
        self.matrix = matrix.detach()
        self.size, self.dtype, self.device = len(matrix), matrix.dtype, matrix.device

    def _apply(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def matmat(self, vectors: Tensor) -> Tensor:
        """Return A V, (P, k)."""
        return self.matrix @ vectors.to(device=self.device, dtype=self.dtype)


class SumOperator(LinearOperator):
    """a A + b B.

    Raises:
        ValueError: the two differ in size, dtype or device.
    """

    def __init__(self, first: Operator, second: Operator, a: float = 1.0, b: float = 1.0) -> None:
        kinds = [(o.size, o.dtype, o.device) for o in (first, second)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"Operators to be added must agree in size, dtype and device; found {kinds}.")
        self.terms = (a, first), (b, second)
        self.size, self.dtype, self.device = kinds[0]

    def _apply(self, v: Tensor) -> Tensor:
        (a, first), (b, second) = self.terms
        return a * first.matvec(v) + b * second.matvec(v)


class ShiftedOperator(LinearOperator):
    """factor * A + amount * I."""

    def __init__(self, operator: Operator, factor: float, amount: float) -> None:
        self.operator, self.factor, self.amount = operator, factor, amount
        self.size, self.dtype, self.device = operator.size, operator.dtype, operator.device

    def _apply(self, v: Tensor) -> Tensor:
        return self.factor * self.operator.matvec(v) + self.amount * v


class DeflatedOperator(LinearOperator):
    """(I - Q^T Q) A (I - Q^T Q) for rows Q; made by `deflate`."""

    def __init__(self, operator: Operator, basis: Tensor) -> None:
        self.operator, self.basis = operator, basis
        self.size, self.dtype, self.device = operator.size, operator.dtype, operator.device

    def _apply(self, v: Tensor) -> Tensor:
        return self.project(self.operator.matvec(self.project(v)))

    def project(self, v: Tensor) -> Tensor:
        """Return v without its part in the span of Q, projected twice against rounding."""
        for _ in range(2):
            v = v - products(self.basis, v).to(v) @ self.basis
        return v


def deflate(operator: Operator, vectors: Any) -> DeflatedOperator:
    """Return the operator projected on both sides off the span of `vectors`: (k, P) rows, or `Eigenpairs`.

    Its eigenpairs are those of the operator with the deflated ones at 0, if `vectors` are eigenvectors;
    otherwise it is still symmetric and maps off the span. `vectors` need not be orthonormal.

    Raises:
        ValueError: `vectors` is not (k, P), not finite, or linearly dependent.
    """
    vectors = getattr(vectors, "vectors", vectors)
    if not isinstance(vectors, Tensor):
        raise ValueError(f"`vectors` must be a tensor or eigenpairs; found {type(vectors).__name__}.")
    if vectors.ndim != 2 or vectors.shape[1] != operator.size or not 0 < len(vectors) <= operator.size:
        raise ValueError(f"`vectors` must be rows (k, {operator.size}); found {tuple(vectors.shape)}.")
    check_finite(vectors, "vectors")
    basis = vectors.detach().to(device=operator.device, dtype=operator.dtype)
    gram = torch.stack([products(basis, row).cpu() for row in basis])
    length = gram.diagonal().sqrt()
    if not torch.allclose(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-6):
        if (
            bool((length == 0).any())
            or float(torch.linalg.eigvalsh(gram / length / length[:, None])[0]) < 1e-10
        ):
            raise ValueError("`vectors` must be linearly independent. Drop rows that repeat others.")
        basis = torch.linalg.qr(basis.T)[0].T.contiguous()
    return DeflatedOperator(operator, basis)


def norm(v: Tensor) -> float:
    """Return the length of v, summed in float64: a float32 sum over 1e5 entries is only good to 3e-5."""
    return float(norms(v))


def norms(rows: Tensor) -> Tensor:
    """Return the lengths of rows (..., P), (...) float64 on the CPU, summed in float64."""
    rows = rows.cpu() if rows.device.type == "mps" else rows
    return torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).cpu()


def image_of(operator: Operator, v: Tensor, number: int) -> tuple[Tensor, float]:
    """Return A v like v, detached, and its length; `number` counts the products, for messages.

    Raises:
        ValueError: it is no real vector of v's shape, or has entries or a length that float64 cannot square.
    """
    w = operator.matvec(v)
    if not isinstance(w, Tensor) or w.shape != v.shape or w.is_complex():
        found = f"{w.dtype} of shape {tuple(w.shape)}" if isinstance(w, Tensor) else type(w).__name__
        raise ValueError(
            f"`operator.matvec` must return a real tensor of shape {tuple(v.shape)}, as it was given; found "
            f"{found}."
        )
    w = w.detach().to(v)
    length = norm(w)
    if not 1e-140 < length < 1e140 and bool((w != 0).any()):
        bad = int((~torch.isfinite(w)).sum())
        if bad:
            raise ValueError(
                f"Products of `operator` must be finite; number {number} has {bad} NaN or infinite entries. "
                "Check the loss at these weights and images."
            )
        raise ValueError(
            f"Products of `operator` must have lengths that float64 can square, 1e-140 to 1e140; number "
            f"{number} has {length:.1e}. Rescale the operator, as in `operator * 1e100`."
        )
    return w, length


def asymmetry_allowed(dtype: torch.dtype) -> float:
    """Return what <q, A r> - <A q, r> may be, in lengths |A q|, before an operator counts as not symmetric.

    Well above rounding (1e-4 in float32 at a kink of ReLU), well below what would spoil eigenvalues unseen.
    """
    return 1e-3 if dtype == torch.float64 else 1e-2


def check_symmetric(apart: float, scale: float, allowed: float, number: int) -> None:
    """Refuse an operator whose <q, A r> and <A q, r> are `apart` in product `number`, with |A q| <= `scale`.

    Raises:
        ValueError: more than `allowed` in units of `scale`; nothing that a solver says would hold then.
    """
    if apart > allowed * scale:
        raise ValueError(
            f"`operator` must be symmetric and the same at every product; in product {number} <q, A r> and "
            f"<A q, r> of unit vectors differ by {apart:.1e}, with |A q| up to {scale:.1e}. Causes: noise in "
            "the model (Dropout called as a function), a matrix that is not symmetric, `resume` from a run "
            "of another operator."
        )


def check_dtype(dtype: torch.dtype, name: str) -> None:
    """Refuse other dtypes than float32 and float64.

    Raises:
        ValueError: such a dtype.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"`{name}` must be float32 or float64; found {dtype}. Half precision leaves no digits for "
            "eigenvalues: convert with `.float()`."
        )
