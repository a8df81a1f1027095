"""Spectral density of a symmetric operator by stochastic Lanczos quadrature, with error bars over probes.

Each probe is a random unit vector v (uniform on the sphere). m Lanczos steps from v give m nodes and weights
with `sum_j w_j node_j^k = v^T A^k v` exactly for k <= 2m - 1 (Golub and Meurant 2010, chapter 6; Ubaru, Chen
and Saad 2017), and `E v^T f(A) v = tr f(A) / P`. Basis vectors are re-orthogonalised twice at each step, so
no node is a ghost copy; inner products and lengths are summed in float64 (`lt_lib.curvature.basis`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lt_lib._checks import check_whole
from lt_lib.collapse.etf import generator_of
from lt_lib.curvature.basis import products
from lt_lib.curvature.eigenpairs import Eigenpairs
from lt_lib.curvature.operators import (
    Operator,
    asymmetry_allowed,
    check_dtype,
    check_symmetric,
    image_of,
    norm,
)

_LOG_WIDTH, _LINEAR_WIDTH = 0.1, 0.01  # decades; share of the range of the nodes


@dataclass(frozen=True)
class Estimate:
    """A mean over probes with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class DensityCurve:
    """A smoothed density on a grid; integrated over the axis it is the share of eigenvalues."""

    grid: Tensor  # (G,) float64: eigenvalues, or decades log10 |eigenvalue|
    density: Tensor  # (G,) float64, mean over probes
    error: Tensor  # (G,) float64, standard error over probes
    width: float  # standard deviation of the Gaussian that smooths, in units of the axis


@dataclass(frozen=True)
class SpectralDensity:
    """Quadrature rules of all probes.

    **Why a spike is invisible here.** A single eigenvalue among P carries the mass 1/P: 4e-8 for a ResNet-50.
    Smoothed, it is a bump of height `1 / (P width sqrt(2 pi))`, which no linear axis shows; and a probe
    gives it the weight (v, q)^2, whose relative standard deviation is sqrt(2) (a chi-square of one degree of
    freedom), so that even the area of the bump is known to sqrt(2 / probes) only. Its place is exact, since
    Lanczos converges to outliers first: read spikes from `nodes`, or better from certified eigenpairs, and
    the bulk from here. Passed as `known`, such pairs take part exactly.
    """

    nodes: Tensor  # (probes, steps + known) float64, ascending
    weights: Tensor  # the same shape, float64, each row sums to one; 0 where a run ended early
    size: int  # P
    products: int  # operator products spent

    def mean_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """Return `tr f(A) / P` with its standard error over probes, f applied to nodes elementwise.

        Exact per probe for polynomials up to degree 2 steps - 1. For an f with a jump, or one that changes
        fast where eigenvalues are dense, the quadrature itself adds an error that the standard error does
        not show.
        """
        return _estimate((self.weights * function(self.nodes)).sum(1))

    @property
    def trace(self) -> Estimate:
        """Trace of the operator. The variance of one probe is 2P/(P + 2) (||A||_F^2 - tr(A)^2 / P)."""
        mean = self.mean_of(lambda t: t)
        return Estimate(self.size * mean.value, self.size * mean.error)

    @property
    def frobenius(self) -> Estimate:
        """Frobenius norm, the root of an unbiased estimate of its square; error to first order."""
        square = self.mean_of(torch.square)
        norm = math.sqrt(self.size * square.value)
        return Estimate(norm, self.size * square.error / (2 * norm) if norm > 0 else 0.0)

    def count(self, low: float = -math.inf, high: float = math.inf) -> Estimate:
        """Number of eigenvalues in [low, high], estimated; within it all, it is exactly P."""
        share = self.mean_of(lambda t: ((t >= low) & (t <= high)).to(t.dtype))
        return Estimate(self.size * share.value, self.size * share.error)

    def linear(self, grid: Tensor | None = None, width: float | None = None) -> DensityCurve:
        """Return the density per unit of eigenvalue.

        Args:
            grid: (G,) eigenvalues; None: 1000 points that cover the nodes and four widths beyond.
            width: of the Gaussian; None: 1 % of the range of the nodes. Structure finer than it is lost.

        Raises:
            ValueError: width not positive.
        """
        low, high = float(self.nodes.min()), float(self.nodes.max())
        if width is None:
            width = _LINEAR_WIDTH * ((high - low) or abs(high) or 1.0)
        if grid is None:
            grid = torch.linspace(low - 4 * width, high + 4 * width, 1000, dtype=torch.float64)
        return self._smooth(grid, self.nodes, self.weights, width)

    def logarithmic(
        self, grid: Tensor | None = None, width: float = _LOG_WIDTH, sign: int = 1
    ) -> DensityCurve:
        """Return the density per decade of |eigenvalue|, of the positive (or negative) eigenvalues.

        The curve integrates to the share of eigenvalues of that sign, `count(...) / P`, not to one.

        Args:
            grid: (G,) values of log10 |eigenvalue|; None: 1000 points from twelve decades below the largest.
            width: of the Gaussian, in decades.
            sign: 1 or -1.

        Raises:
            ValueError: width not positive, or a sign that is neither.
        """
        if sign not in (1, -1):
            raise ValueError(f"`sign` must be 1 or -1; found {sign}. Zero has no logarithm: use `count`.")
        ours = self.nodes * sign > 0
        decades = torch.where(ours, (self.nodes * sign).clamp_min(1e-300), 1.0).log10()
        if grid is None:
            top = float(decades[ours].max()) if bool(ours.any()) else 0.0
            grid = torch.linspace(top - 12, top + 4 * width, 1000, dtype=torch.float64)
        return self._smooth(grid, decades, self.weights * ours, width)

    def _smooth(self, grid: Tensor, places: Tensor, weights: Tensor, width: float) -> DensityCurve:
        if not 0 < width < math.inf:
            raise ValueError(f"`width` must be positive and finite; found {width}.")
        grid = grid.to(torch.float64)
        curves = []
        for place, weight in zip(places, weights, strict=True):
            bumps = torch.exp(-0.5 * ((grid[:, None] - place) / width) ** 2)
            curves.append(bumps @ weight / (width * math.sqrt(2 * math.pi)))
        stack = torch.stack(curves)
        return DensityCurve(grid, stack.mean(0), stack.std(0) / math.sqrt(len(stack)), width)


def spectral_density(
    operator: Operator, probes: int = 10, steps: int = 80, seed: int = 0, known: Eigenpairs | None = None
) -> SpectralDensity:
    """Return quadrature rules for the spectrum of a symmetric operator (stochastic Lanczos quadrature).

    Args:
        operator: with `size`, `dtype`, `device` and `matvec`.
        probes: number of random vectors, at least 2 (error bars need two). More probes extend fewer.
        steps: Lanczos steps m a probe, at most `size`; memory holds m vectors. A run that has found an
            invariant subspace ends early, and its rule is then exact.
        seed: of the probes, drawn on the CPU, so that every device gets the same.
        known: converged eigenpairs, for instance the spikes. They enter each rule exactly, with the weight
            1/P; probes and operator are restricted to their orthogonal complement. Trace, norm and counts
            then vary no more with the luck of (v, q)^2 at the largest eigenvalues. None: nothing is known.

    Returns:
        SpectralDensity over `probes * steps` products (fewer if runs end early).

    Raises:
        ValueError: fewer than two probes, steps outside 2..size (less the known ones), half precision, known
            pairs of another size, or products that are not finite or show that the operator is not symmetric.
        RuntimeError: a known pair has not converged.
    """
    if check_whole(probes, "probes") < 2:
        raise ValueError(f"`probes` must be at least 2; found {probes}. One probe has no error bar.")
    check_whole(steps, "steps")
    check_dtype(operator.dtype, "operator.dtype")
    values, locked = _locked(operator, known)
    free = operator.size - len(values)
    if free == 0:
        raise ValueError("`known` holds every eigenpair: nothing is left to estimate. Leave some out.")
    fewest = min(2, free)  # one step would get the second moment, so the Frobenius norm, wrong
    if not fewest <= steps <= free:
        raise ValueError(f"`steps` must be {fewest}..{free}, the dimensions that are free; found {steps}.")
    generator = generator_of(seed)
    rules, spent = [], 0
    for _ in range(probes):
        start = torch.randn(operator.size, generator=generator, dtype=torch.float64)
        nodes, weights = _quadrature(operator, start, steps, locked)
        spent += len(nodes)
        missing = steps - len(nodes)
        nodes = torch.cat([nodes, nodes[-1:].expand(missing), values])
        weights = (
            torch.cat([weights * free, weights.new_zeros(missing), torch.ones_like(values)]) / operator.size
        )
        order = nodes.argsort(stable=True)
        rules.append((nodes[order], weights[order]))
    return SpectralDensity(
        torch.stack([n for n, _ in rules]), torch.stack([w for _, w in rules]), operator.size, spent
    )


def _locked(operator: Operator, known: Eigenpairs | None) -> tuple[Tensor, Tensor]:
    """Known values (k,) and vectors (k, P) in the operator's dtype and place; k may be 0."""
    if known is None:
        empty = torch.empty(0, operator.size, dtype=operator.dtype, device=operator.device)
        return torch.empty(0, dtype=torch.float64), empty
    known.require_converged()
    if known.vectors.shape[1] != operator.size:
        raise ValueError(
            f"`known` has vectors of size {known.vectors.shape[1]}, `operator` has {operator.size}."
        )
    vectors = known.vectors.to(dtype=operator.dtype, device=operator.device)
    return known.values.to("cpu", torch.float64), vectors


def _quadrature(operator: Operator, start: Tensor, steps: int, locked: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of one probe: eigenvalues of the tridiagonal matrix, first entries squared."""
    basis = torch.empty(steps, operator.size, dtype=operator.dtype, device=operator.device)
    start = _orthogonal(start.to(basis), locked)
    basis[0] = start / norm(start)
    diagonal: list[float] = []
    off: list[float] = []
    largest = 0.0
    resolution = operator.size**0.5 * torch.finfo(operator.dtype).eps
    for step in range(steps):
        image, scale = image_of(operator, basis[step], step + 1)
        largest = max(largest, scale)
        diagonal.append(float(products(basis[step : step + 1], image)))
        if step:
            apart = abs(float(products(basis[step - 1 : step], image)) - off[-1])
            check_symmetric(apart, largest, asymmetry_allowed(operator.dtype), step + 1)
        image = _orthogonal(image, locked, basis[: step + 1])
        beta = norm(image)
        if step + 1 == steps or beta <= 10 * resolution * max(scale, max(map(abs, diagonal))):
            break
        off.append(beta)
        basis[step + 1] = image / beta
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    beside = torch.tensor(off, dtype=torch.float64)
    tridiagonal += torch.diag(beside, 1) + torch.diag(beside, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    return values, vectors[0] ** 2


def _orthogonal(vector: Tensor, *bases: Tensor) -> Tensor:
    for _ in range(2):  # classical Gram-Schmidt is as good as exact when done twice
        for rows in bases:
            vector = vector - rows.T @ products(rows, vector).to(vector)
    return vector


def _estimate(per_probe: Tensor) -> Estimate:
    return Estimate(float(per_probe.mean()), float(per_probe.std()) / math.sqrt(len(per_probe)))
