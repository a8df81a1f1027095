"""Orthonormal rows of a Krylov basis in blocks: any device, float64 to bfloat16, rotated without a copy."""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ROWS = 16
SHORT = 2**12  # entries summed in float32
CHUNK = 2**16  # columns converted or rotated at once: what a temporary may hold of each row, within a cache


def products(rows: Tensor, w: Tensor) -> Tensor:
    """Return the inner products of rows (m, P) with w in float64: short sums in w's dtype, summed in float64.

    They lie on w's device, on the CPU if it has no float64 (MPS).
    One float32 sum over 1e5 entries is good to 1e-5 to 1e-4, and so would be the orthogonality of the basis.
    On the CPU one product after the other is several times as fast as a batched product of one column.
    """
    if w.dtype == torch.float64:
        return rows @ w
    if w.device.type == "cpu":
        pieces = zip(rows.split(SHORT, 1), w.split(SHORT), strict=True)
        return torch.stack([piece @ part for piece, part in pieces]).double().sum(0)
    even = len(w) // SHORT * SHORT
    total = _double(rows[:, even:] @ w[even:])
    if even:
        short = rows[:, :even].unflatten(1, (-1, SHORT)).transpose(0, 1)  # (P / SHORT, m, SHORT)
        total += _double(torch.bmm(short, w[:even].view(-1, SHORT, 1))).sum(0).squeeze(1)
    return total


def _double(t: Tensor) -> Tensor:
    return (t.cpu() if t.device.type == "mps" else t).double()


class Basis:
    """Rows (m, P), stored in `dtype` on `device`; coefficients are sums in float64.

    Rows stored in fewer bits than the operator's are rounded when they enter; callers multiply the operator
    with the rounded row (`row`), so that coefficients belong to what is stored.

    Args:
        size: P.
        dtype: of the stored rows.
        device: of the stored rows.
        work: dtype of the vectors that come in and go out.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, work: torch.dtype) -> None:
        self.size, self.dtype, self.device, self.work = size, dtype, device, work
        self._blocks: list[Tensor] = []
        self.rows = 0

    def append(self, row: Tensor) -> Tensor:
        """Store a row and return it as it was stored, in the working dtype on the row's device."""
        if self.rows == BLOCK_ROWS * len(self._blocks):
            self._blocks.append(torch.empty(BLOCK_ROWS, self.size, dtype=self.dtype, device=self.device))
        stored = self._blocks[-1][self.rows % BLOCK_ROWS]
        stored.copy_(row)
        self.rows += 1
        return stored.to(device=row.device, dtype=self.work)

    def row(self, index: int) -> Tensor:
        """Return one row as it is stored."""
        return self._blocks[index // BLOCK_ROWS][index % BLOCK_ROWS]

    def coefficients(self, w: Tensor) -> Tensor:
        """Return the inner products of the rows with w, (m,) float64 on the CPU."""
        w = w.to(device=self.device)
        found = []
        for block in self._filled():
            if block.dtype == w.dtype:
                found.append(products(block, w))
            else:
                parts = [products(block[:, c].to(w.dtype), w[c]) for c in self._columns()]
                found.append(torch.stack(parts).sum(0))
        return torch.cat(found).cpu() if found else torch.zeros(0, dtype=torch.float64)

    def subtract(self, w: Tensor, c: Tensor) -> Tensor:
        """Return w minus the rows times the coefficients c, in w's place if it lies on the basis's device."""
        home, w = w.device, w.to(device=self.device)
        c = c.to(device=self.device, dtype=w.dtype)
        first = 0
        for block in self._filled():
            part = c[first : first + len(block)]
            if block.dtype == w.dtype:
                w.addmv_(block.T, part, alpha=-1)
            else:
                for columns in self._columns():
                    w[columns].addmv_(block[:, columns].to(w.dtype).T, part, alpha=-1)
            first += len(block)
        return w.to(device=home)

    def rotate(self, s: Tensor) -> None:
        """Replace the m rows by the rows of s^T Q for s (m, p), p <= m, a chunk of columns at a time."""
        s = s.T.to(device=self.device, dtype=self.work)
        blocks = list(self._filled())
        for columns in self._columns():
            old = torch.cat([block[:, columns].to(self.work) for block in blocks])
            new = s @ old
            for first, block in zip(range(0, len(new), BLOCK_ROWS), blocks, strict=False):
                part = new[first : first + BLOCK_ROWS]
                block[: len(part), columns] = part.to(self.dtype)
        self.rows = s.shape[0]
        del self._blocks[-(-self.rows // BLOCK_ROWS) :]

    def release(self, device: torch.device) -> Tensor:
        """Return all rows (m, P) in the working dtype on `device`, giving up each block once it is copied."""
        out = torch.empty(self.rows, self.size, dtype=self.work, device=device)
        first = 0
        while self._blocks:
            block = self._blocks.pop(0)[: self.rows - first]
            out[first : first + len(block)] = block.to(device)
            first += len(block)
        self.rows = 0
        return out

    def blocks(self, copy: bool) -> dict[str, Tensor]:
        """Return the rows as they are stored, in blocks (<= 16, P): copies, or views of what will change."""
        blocks = (block.clone() if copy else block for block in self._filled())
        return {f"basis.{i}": block for i, block in enumerate(blocks)}

    def _filled(self) -> Iterator[Tensor]:
        for first, block in zip(range(0, self.rows, BLOCK_ROWS), self._blocks, strict=False):
            yield block[: self.rows - first]

    def _columns(self) -> Iterator[slice]:
        for first in range(0, self.size, CHUNK):
            yield slice(first, first + CHUNK)
