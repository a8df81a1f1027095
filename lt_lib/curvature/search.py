"""When to go on, to restart, to start afresh, and to stop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lt_lib.curvature.krylov import Krylov
from lt_lib.curvature.ritz import Ritz, fresh_miss_probability, rayleigh_ritz

MISS_PROBABILITY = 1e-3  # a fresh start ends when the chance to have missed something is below

COPY = 1e-5  # relative distance of two values above which they are no copies

CLEAR = 0.05  # relative residual at which the pair after the k-th is known well enough


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a product."""

    products: int
    values: Tensor  # (<= k,) Ritz values
    residuals: Tensor  # (<= k,) relative
    # everything needed to resume, copied; `state(copy=False)` gives views of the basis, which the next step
    # changes: enough to write it to a file without holding it twice
    state: Callable[..., dict[str, Tensor]]


class Search:
    """Drives a `Krylov` until the k wanted pairs are certified, or products run out."""

    def __init__(
        self, krylov: Krylov, k: int, tol: float, which: str, rows: int, products: int, multiplicities: bool
    ) -> None:
        self.krylov, self.k, self.tol, self.which = krylov, k, tol, which
        self.rows, self.max_products = rows, products
        self.must_check = multiplicities
        self.fresh_from: int | None = None  # first row of the latest fresh start, while rows are not mixed
        self.checked = torch.zeros(0, dtype=torch.float64)  # wanted values when that start was made
        self.complete: bool | None = None  # whether a fresh start found nothing more; None: none was made
        self.missed: float | None = None
        self.ended = False
        self.ritz: Ritz

    def run(self, callback: Callable[[Progress], None] | None) -> None:
        """Step until finished; the state of a finished run takes no further step."""
        self.ended = self.ended and self._finished()
        while not self.ended:
            self.krylov.step()
            self.ended = self._finished()
            if callback is not None:
                residuals = self.ritz.relative(self.tol)[: self.k]
                values = self.ritz.values[: self.k].clone()
                callback(Progress(self.krylov.products, values, residuals, self.state))

    def _finished(self) -> bool:
        krylov = self.krylov
        self.ritz = rayleigh_ritz(krylov.t, krylov.beta, krylov.outside, self.which, krylov.floor)
        if krylov.full:
            self.complete, self.missed = True, 0.0
            return True
        # an invariant space of few vectors means few distinct eigenvalues, so copies; and one start sees a
        # copy only by rounding, so where one turned up there may be more
        self.must_check |= krylov.invariant or self._copies()
        if self._converged() and (not self.must_check or self._nothing_missed()):
            return True
        if krylov.products >= self.max_products:
            return True
        self._go_on()
        return False

    def _converged(self) -> bool:
        wanted = self.ritz.relative(self.tol)[: self.k]
        return len(wanted) == self.k and bool((wanted <= self.tol).all()) and self._next_is_clear()

    def _next_is_clear(self) -> bool:
        """Return whether the Ritz value after the k-th cannot be one on its way past it.

        A start with little of some eigenvector shows its value late, climbing through the others from behind.
        """
        following = slice(self.k, self.k + 1)
        error, value = self.ritz.errors[following], self.ritz.values[following]
        last = self.ritz.values[self.k - 1]
        apart = last.abs() - value.abs() if self.which == "LM" else (last - value).abs()
        return bool((error <= torch.maximum(CLEAR * value.abs(), apart)).all())

    def _copies(self) -> bool:
        """Return whether two converged values are nearer to each other than they are known.

        A residual e puts a value within e^2 / gap of an eigenvalue if all others are that far. Loose ones
        would take a dense spectrum for copies, hence the limit.
        """
        ritz = self.ritz
        values, order = ritz.values.sort()
        good = ((ritz.relative(self.tol) <= self.tol) & (torch.arange(len(order)) < self.k))[order]
        errors, apart = ritz.errors[order], values.diff()
        far = torch.full((1,), torch.inf, dtype=torch.float64)
        gaps = torch.minimum(torch.cat([far, apart[:-1]]), torch.cat([apart[1:], far]))[: len(apart)]
        squares = errors.square()
        known = (squares[1:] + squares[:-1]) / gaps.clamp(min=torch.finfo(torch.float64).tiny)
        known = torch.minimum(known, COPY * values[1:].abs()) + ritz.resolution
        return bool(((apart <= known) & good[1:] & good[:-1]).any())

    def _nothing_missed(self) -> bool:
        """Return whether the fresh start has shown that it finds nothing before the k-th value."""
        if len(self.checked) < self.k or self._changed():
            return False
        krylov, chance = self.krylov, 1.0
        if self.fresh_from is not None:
            t = krylov.t
            chance = fresh_miss_probability(
                self.ritz, t, self.fresh_from, krylov.operator.size, self.k, self.which
            )
        self.complete = krylov.invariant or chance <= MISS_PROBABILITY or self._exhausted()
        self.missed = 0.0 if krylov.invariant else chance
        return self.complete

    def _exhausted(self) -> bool:
        """Return whether the fresh start's own best pair has converged: what it could see, it has seen."""
        krylov, first = self.krylov, self.fresh_from
        if first is None:  # rows are mixed: its best pair is the one after the wanted
            own = self.ritz.relative(self.tol)[self.k : self.k + 1]
        else:
            t = krylov.t[first:, first:]
            ritz = rayleigh_ritz(t, krylov.beta, krylov.outside[first:], self.which, krylov.floor)
            own = ritz.relative(self.tol)[:1]
        return bool((own <= self.tol).any())

    def _changed(self) -> bool:
        apart = (self.ritz.values[: self.k] - self.checked).abs()
        return bool((apart > self.tol * self.checked.abs() + self.ritz.resolution).any())

    def _go_on(self) -> None:
        """Prepare the next step: a fresh start, a thick restart, or nothing."""
        krylov = self.krylov
        if krylov.invariant:
            self.checked = self.ritz.values[: self.k].clone() if self._converged() else self.checked[:0]
            self.fresh_from = krylov.basis.rows
        elif self.must_check and self._converged() and (len(self.checked) < self.k or self._changed()):
            self._lock()
        if krylov.basis.rows >= self.rows:
            self._restart()

    def _lock(self) -> None:
        """Keep the wanted pairs alone, and start afresh orthogonal to them."""
        ritz, keep = self.ritz, self.k
        self.krylov.compress(ritz.weights[:, :keep], ritz.values[:keep], ritz.errors[:keep])
        self.checked, self.fresh_from = ritz.values[:keep].clone(), keep

    def _restart(self) -> None:
        ritz = self.ritz
        keep = min(self.k + max(1, (self.rows - self.k) // 2), self.rows - 1)
        self.krylov.compress(ritz.weights[:, :keep], ritz.values[:keep])
        # rows are mixed now; after an invariant space the next row starts afresh anyway
        self.fresh_from = keep if self.krylov.invariant else None

    def state(self, copy: bool = True) -> dict[str, Tensor]:
        """Return everything needed to go on; without `copy` the basis is views."""
        fresh = -1 if self.fresh_from is None else self.fresh_from
        numbers = torch.tensor([self.must_check, fresh, self.k, self.ended], dtype=torch.float64)
        return self.krylov.state(copy) | {"checked": self.checked.clone(), "search": numbers}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state.

        Raises:
            ValueError: it is of another problem.
        """
        needed = {"basis.0", "next", "t", "outside", "krylov", "checked", "search"}
        if not isinstance(state, Mapping) or not needed <= set(state):
            raise ValueError("`resume` must be what `Progress.state()` returned. Start without it.")
        size, k = state["basis.0"].shape[1], int(state["search"][2])
        if size != self.krylov.operator.size or k != self.k:
            raise ValueError(
                f"`resume` must be the state of a run for `k` = {self.k} with vectors of size "
                f"{self.krylov.operator.size}; found `k` = {k} and size {size}. Start without it."
            )
        mine, saved = self.krylov.basis.dtype, state["basis.0"].dtype
        if saved != mine:
            raise ValueError(
                f"`resume` holds a basis in {saved}, but this run keeps {mine}. Pass the same `basis_dtype`."
            )
        self.krylov.load(state)
        self.must_check, self.ended = bool(state["search"][0]), bool(state["search"][3:].any())
        fresh = int(state["search"][1])
        self.fresh_from, self.checked = None if fresh < 0 else fresh, state["checked"].clone()
