"""Processes that work on one batch together: who computes which rows, and the sums they share.

Alone, everything here gives back what it was given. `lt_lib.training.distributed` starts a team.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """The processes that compute together, seen by one of them; by default this one alone."""

    rank: int = 0  # number of this process, from 0
    size: int = 1
    batch_norm: str = "global"  # statistics over the "global" batch, or "local" to each process

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """Return this process's part of `rows` rows: every row once over all processes, sizes one apart."""
        return slice(*self.bounds(rows)[self.rank])

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each process's part; a part is empty where rows are too few."""
        edges = [rows * rank // self.size for rank in range(self.size + 1)]
        return list(pairwise(edges))

    def sum_(self, values: Tensor) -> Tensor:
        """Replace `values` by their sum over the processes, to the same bits on each; no gradient."""
        if not self.alone:
            dist.all_reduce(values)
        return values

    def rows(self, own: Tensor, total: int) -> Tensor:
        """Return all `total` rows (total, ...), of which each process brings its `share`; no gradient.

        Shares of different sizes are padded for the transport alone: nothing comes twice.
        """
        if self.alone:
            return own
        bounds = self.bounds(total)
        longest = max(stop - start for start, stop in bounds)
        sent = own.new_zeros(longest, *own.shape[1:])
        sent[: len(own)] = own
        received = [torch.empty_like(sent) for _ in bounds]
        dist.all_gather(received, sent)
        return torch.cat([part[: stop - start] for part, (start, stop) in zip(received, bounds, strict=True)])

    def counts(self, own: int, device: torch.device) -> list[int]:
        """Return the number that each process brings, by rank."""
        numbers = torch.zeros(self.size, dtype=torch.int64, device=device)
        numbers[self.rank] = own
        return [int(n) for n in self.sum_(numbers).tolist()]

    def from_first_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite `tensors` with those of the first process."""
        if not self.alone:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Wait until every process has come here."""
        if not self.alone:
            dist.barrier()

    def check_same(self, what: str, things: Iterable[Any], device: torch.device) -> None:
        """Refuse processes that hold different tensors or texts.

        Raises:
            ValueError: some process's digest differs; every process raises.
        """
        if self.alone:
            return
        own = torch.tensor(list(_digest(things)), dtype=torch.uint8, device=device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own)
        apart = [rank for rank, other in enumerate(every) if not torch.equal(other, every[0])]
        if apart:
            raise ValueError(
                f"Processes must start from the same {what}; process {apart[0]} differs from process 0. "
                "Build them from the same seed and the same files in every process."
            )


def _digest(things: Iterable[Any]) -> bytes:
    found = hashlib.sha256()
    for thing in things:
        if isinstance(thing, Tensor):
            found.update(f"{thing.dtype} {tuple(thing.shape)}".encode())
            found.update(thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(thing).encode())
    return found.digest()


_team = [Processes()]


def current() -> Processes:
    """Return the processes that compute together now; this one alone outside `lt_lib.training.processes`."""
    return _team[-1]


@contextmanager
def together(team: Processes) -> Iterator[Processes]:
    """Let `team` be the current one within the block."""
    _team.append(team)
    try:
        yield team
    finally:
        _team.pop()


class _Gathered(torch.autograd.Function):
    """All rows of which each process brings its share; back goes `size` times the share's gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, team: Processes, total: int) -> Tensor:
        ctx.team, ctx.total = team, total
        return team.rows(own, total)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[ctx.team.share(ctx.total)] * ctx.team.size, None, None


class _Summed(torch.autograd.Function):
    """A sum over the processes; its adjoint is the same sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, team: Processes) -> Tensor:
        ctx.team = team
        return team.sum_(own.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.team.sum_(gradient.contiguous().clone()), None


def gathered(own: Tensor, team: Processes, total: int) -> Tensor:
    r"""Return all `total` rows, with gradient: what every process then computes of them is the same.

    Let F be a function of the rows z = (z_1, ..., z_W) that each of W processes computes alike, with further
    parameters :math:`\phi` (of a head, say), and let process r have made z_r from parameters
    :math:`\theta`. By the chain rule

    .. math:: \nabla_\theta F=\sum_r J_r^\top\,\frac{\partial F}{\partial z_r},\qquad
       J_r=\frac{\partial z_r}{\partial\theta}.

    Every process knows :math:`\partial F/\partial z_r` of its own rows already, so that nothing is sent on
    the way back; it is multiplied by W. Then the *mean* over processes of what backward leaves in `.grad` is
    :math:`\frac1W\sum_rW J_r^\top\partial F/\partial z_r=\nabla_\theta F` before the gather, and
    :math:`\nabla_\phi F` after it, where each process holds the whole. Whatever mixes the rows (class means,
    weights that depend on them, their gradients) is in F, computed as one process would.
    """
    rows: Tensor = own if team.alone else _Gathered.apply(own, team, total)
    return rows


def summed(own: Tensor, team: Processes) -> Tensor:
    """Return the sum of `own` over the processes, with gradient."""
    total: Tensor = own if team.alone else _Summed.apply(own, team)
    return total
