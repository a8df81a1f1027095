"""A deflation basis in few bits, and the operator off its span."""

import math

import torch
from torch import Tensor

from lt_lib.curvature.basis import Basis
from lt_lib.curvature.operators import LinearOperator, Operator

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse a type that rows cannot be stored in.

    Raises:
        ValueError: it is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"`basis_dtype` must be one of {', '.join(str(d) for d in DTYPES)}; found {dtype}.")


class CompactBasis:
    r"""Rows (m, P) of unit length in few bits, and the exact projector off the span of what is stored.

    Rounded rows are no longer orthonormal, so the projector is :math:`I-Q^\top(QQ^\top)^{-1}Q` with the small
    Gram matrix in float64. Each row is stored times about sqrt(P): its entries then are about 1, whereas
    those of a unit vector in 10^7 dimensions come close to where float16 loses digits.

    Args:
        size: P.
        dtype: of the stored rows; float16 rounds to 5e-4 of an entry, bfloat16 to 4e-3.
        device: of the stored rows.
        work: dtype of the vectors that come in and go out.

    Raises:
        ValueError: another dtype.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, work: torch.dtype) -> None:
        check_dtype(dtype)
        self._basis = Basis(size, dtype, device, work)
        self._scale = 2.0 ** round(math.log2(size) / 2)  # a power of two: rows come back to the bit
        self._gram = torch.zeros(0, 0, dtype=torch.float64)
        self._inverse = self._gram

    def __len__(self) -> int:
        return self._basis.rows

    @property
    def bytes(self) -> int:
        """Memory that the rows take."""
        return len(self) * self._basis.size * self._basis.dtype.itemsize

    def append(self, rows: Tensor) -> None:
        """Store unit rows (k, P)."""
        for row in rows:
            self._basis.append(row * self._scale)
        before, after = len(self._gram), len(self)
        columns = torch.stack([self._coefficients(self.row(i)) for i in range(before, after)], 1)
        gram = torch.zeros(after, after, dtype=torch.float64)
        gram[:before, :before] = self._gram
        gram[:, before:] = columns
        gram[before:, :before] = columns[:before].T
        self._gram, self._inverse = gram, torch.linalg.inv(gram)

    def row(self, index: int) -> Tensor:
        """Return one row as it is stored, at its own length, in the working dtype."""
        return self._basis.row(index).to(self._basis.work) / self._scale

    def tensor(self) -> Tensor:
        """Return the stored rows (m, P) in the stored dtype, not scaled back."""
        return torch.cat(list(self._basis.blocks(copy=True).values()))

    def restore(self, stored: Tensor) -> None:
        """Take over rows (m, P) that `tensor()` returned."""
        self.append(stored.to(self._basis.work) / self._scale)

    def project(self, v: Tensor) -> Tensor:
        """Return v (P,) without its part in the span of the rows, taken off twice against rounding."""
        v = v.clone()
        for _ in range(2):
            v = self._basis.subtract(v, self._inverse @ self._coefficients(v) / self._scale)
        return v

    def _coefficients(self, v: Tensor) -> Tensor:
        return self._basis.coefficients(v) / self._scale


class OffSpan(LinearOperator):
    """The operator projected on both sides off the span of a `CompactBasis`: deflation in few bits.

    `lt_lib.curvature.deflate` does the same for rows in the operator's dtype.
    """

    def __init__(self, operator: Operator, basis: CompactBasis) -> None:
        self.operator, self.basis = operator, basis
        self.size, self.dtype, self.device = operator.size, operator.dtype, operator.device

    def _apply(self, v: Tensor) -> Tensor:
        return self.basis.project(self.operator.matvec(self.basis.project(v)))
