"""A growing orthonormal basis with the operator projected on it."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lt_lib.curvature.basis import Basis
from lt_lib.curvature.operators import Operator, asymmetry_allowed, check_symmetric, image_of, norm
from lt_lib.curvature.ritz import floor_of


class Krylov:
    """A Q = Q T + beta q e_m^T + R, one product a step.

    Args:
        operator: A.
        dtype: of the stored rows.
        device: of the stored rows.
        seed: of random starts; the n-th depends on (seed, n) alone.
    """

    def __init__(self, operator: Operator, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.operator = operator
        self.basis = Basis(operator.size, dtype, device, operator.dtype)
        self.seed, self.draws, self.products = seed, 0, 0
        self.t = torch.zeros(0, 0, dtype=torch.float64)  # (m, m) T
        self.outside = torch.zeros(0, dtype=torch.float64)  # (m,) norms of the rows of R
        self.beta, self.scale = 0.0, 0.0  # scale: largest ||A q|| seen
        self._next: Tensor | None = None  # unit vector orthogonal to the basis; None: draw one
        # (m,) what <A q_j, next> is, so <q_j, A next> must be; None: not known
        self._coupling: Tensor | None = torch.zeros(0, dtype=torch.float64)
        self._slack = max(asymmetry_allowed(operator.dtype), 8 * torch.finfo(dtype).eps)

    @property
    def floor(self) -> float:
        """The part of the operator's norm that is rounding."""
        return floor_of(self.operator.dtype)

    @property
    def full(self) -> bool:
        """Whether the basis spans everything."""
        return self.basis.rows == self.operator.size

    @property
    def invariant(self) -> bool:
        """Whether the operator maps the basis into itself, up to rounding."""
        return self.beta == 0

    def begin(self, start: Tensor | None) -> None:
        """Set the first vector; None draws it, leaning towards the loss's gradient where there is one."""
        gradient = getattr(self.operator, "gradient", None)
        if start is None and callable(gradient):
            start = self._leaning(gradient())
        if start is not None:
            start = start.to(device=self.operator.device, dtype=self.operator.dtype)
            self._next = start / norm(start)

    def step(self) -> None:
        """Add the next vector to the basis, multiply it, and find the one after.

        Raises:
            ValueError: the product is not finite or of another shape, or shows that A is not symmetric.
        """
        q = self.basis.append(self._next if self._next is not None else self._draw())
        self.products += 1
        w, length = image_of(self.operator, q, self.products)
        self.scale = max(self.scale, length)
        w = w.clone() if w.data_ptr() == q.data_ptr() else w
        w, c = self._orthogonalise(w)
        self._check_symmetry(c[:-1])
        self._extend(c)
        beta = norm(w)
        invariant = beta <= self.floor * self.scale or self.full
        if invariant:
            self.outside[-1] = beta
        self.beta = 0.0 if invariant else beta
        self._next = None if invariant else w.div_(beta)
        self._coupling = torch.zeros(len(c), dtype=torch.float64)
        self._coupling[-1] = self.beta

    def compress(self, weights: Tensor, values: Tensor, errors: Tensor | None = None) -> None:
        """Keep the combinations `weights` (m, p) with Ritz values (p,): a thick restart, from `_next`.

        Args:
            weights: coefficients in the basis.
            values: Ritz values.
            errors: residual norms of the kept pairs, if a random vector shall follow instead.
        """
        outside = self.outside @ weights.abs() if errors is None else errors.clone()
        self.basis.rotate(weights)
        self.t, self.outside = torch.diag(values), outside
        if self._coupling is not None:
            self._coupling = self._coupling @ weights if errors is None else torch.zeros(len(values)).double()
        if errors is not None:
            self.beta, self._next = 0.0, None

    def state(self, copy: bool = True) -> dict[str, Tensor]:
        """Return everything needed to go on, as tensors; without `copy` the basis is views."""
        pending = self._next if self._next is not None else torch.empty(0, dtype=self.operator.dtype)
        numbers = torch.tensor([self.beta, self.scale, self.draws, self.products], dtype=torch.float64)
        state = self.basis.blocks(copy) | {"t": self.t.clone(), "outside": self.outside.clone()}
        if self._coupling is not None:
            state["coupling"] = self._coupling.clone()
        return state | {"next": pending.clone(), "krylov": numbers}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state."""
        for index in range(sum(name.startswith("basis.") for name in state)):
            for row in state[f"basis.{index}"]:
                self.basis.append(row)
        self._next = state["next"].to(self.operator.device) if state["next"].numel() else None
        self.t, self.outside = state["t"].clone(), state["outside"].clone()
        self.beta, self.scale, draws, products = state["krylov"].tolist()
        self.draws, self.products = int(draws), int(products)
        self._coupling = state["coupling"].clone() if "coupling" in state else None

    def _check_symmetry(self, c: Tensor) -> None:
        """Refuse an operator with <q_j, A q> far from <A q_j, q>."""
        if self._coupling is None or len(c) == 0:
            return
        apart = float(((c - self._coupling).abs() - self.outside).max())
        check_symmetric(apart, self.scale, self._slack, self.products)

    def _draw(self) -> Tensor:
        """Return a random unit vector orthogonal to the basis."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.draws) % 2**63)
        self.draws += 1
        w = torch.randn(self.operator.size, generator=generator, dtype=torch.float64)
        w = w.to(device=self.operator.device, dtype=self.operator.dtype)
        for _ in range(2):  # the second time repairs what little of a nearly full space is left
            w, _ = self._orthogonalise(w / norm(w))
        return w / norm(w)

    def _leaning(self, gradient: Tensor | None) -> Tensor | None:
        """Return a random unit vector plus the unit gradient; None where that has no direction.

        A trained network's gradient lies mostly along its spikes (Gur-Ari, Roberts and Dyer 2018), which
        saves a product or two; the random half keeps every eigenvector within reach.
        """
        if gradient is None:
            return None
        if gradient.shape != (self.operator.size,):
            raise ValueError(
                f"`operator.gradient()` must be a vector ({self.operator.size},) or None; found shape "
                f"{tuple(gradient.shape)}. Give `start` to do without it."
            )
        length = norm(gradient)
        if not 0 < length < math.inf:
            return None
        return self._draw() + (gradient / length).to(device=self.operator.device, dtype=self.operator.dtype)

    def _orthogonalise(self, w: Tensor) -> tuple[Tensor, Tensor]:
        first = self.basis.coefficients(w)
        w = self.basis.subtract(w, first)
        second = self.basis.coefficients(w)
        return self.basis.subtract(w, second), first + second

    def _extend(self, c: Tensor) -> None:
        m = len(c)
        t = torch.zeros(m, m, dtype=torch.float64)
        t[:-1, :-1] = self.t
        t[:, -1] = t[-1, :] = c
        self.t = t
        self.outside = torch.cat([self.outside, torch.zeros(1, dtype=torch.float64)])
