"""Ways to multiply by the Hessian, each a class with `__call__(parts of v) -> parts of H v`.

All give the same product. They differ in what is done once and what for each vector:

- `Retained`: the gradient's graph is built once and differentiated for each vector.
- `Recompute`: the graph is built for each vector, one micro-batch at a time; the least memory.
- `ForwardOverReverse`: forward mode over the gradient, recomputed for each vector.
- `Linearize`: that, traced once into its linear part (`torch.func.linearize`).
- `Compiled`: that, compiled once by `torch.compile`; needs a compiler for the device.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import grad

from lt_lib.curvature.problem import Problem, Theta

Gradient = tuple[Tensor, ...]


class Product(Protocol):
    """A symmetric linear map on tuples of tensors shaped like the parameters."""

    def __call__(self, v: Theta) -> Theta: ...  # noqa: D102


def _graph(
    problem: Problem, leaves: Theta, images: Tensor, labels: Tensor, differentiable: bool = True
) -> Gradient:
    value = problem.value(leaves, images, labels)
    if not value.requires_grad:  # no chosen parameter is used
        return tuple(torch.zeros_like(p) for p in leaves)
    return grad(value, leaves, create_graph=differentiable, materialize_grads=True)


def _differentiate(gradient: Gradient, leaves: Theta, v: Theta, keep: bool) -> Theta:
    """Return the derivative of <gradient, v>; entries of the gradient that are constant drop out."""
    live = [(g, part) for g, part in zip(gradient, v, strict=True) if g.requires_grad]
    if not live:
        return tuple(torch.zeros_like(p) for p in leaves)
    heads, parts = zip(*live, strict=True)
    return grad(heads, leaves, parts, retain_graph=keep, materialize_grads=True)


def added(parts: Iterable[Theta]) -> Theta:
    """Return the sum of one part or more; the first is overwritten, and no other is kept."""
    return reduce(lambda total, part: tuple(a.add_(b) for a, b in zip(total, part, strict=True)), parts)


class Retained:
    """Differentiate a gradient whose graph was kept."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        self._leaves = problem.leaves()
        with problem.surroundings():
            self._gradients = [_graph(problem, self._leaves, *chunk) for chunk in problem.chunks(micro_batch)]

    def __call__(self, v: Theta) -> Theta:
        """Return H v."""
        return added(_differentiate(gradient, self._leaves, v, keep=True) for gradient in self._gradients)

    def gradient(self) -> Gradient:
        """Return the gradient of the loss, which is there already."""
        return added(tuple(g.detach().clone() for g in gradient) for gradient in self._gradients)


class Recompute:
    """Build the gradient's graph for each vector, and drop it."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        self._problem, self._micro_batch = problem, micro_batch

    def __call__(self, v: Theta) -> Theta:
        """Return H v."""
        problem, leaves = self._problem, self._problem.leaves()
        with problem.surroundings():
            return added(
                _differentiate(_graph(problem, leaves, *chunk), leaves, v, keep=False)
                for chunk in problem.chunks(self._micro_batch)
            )


def gradient_of_loss(problem: Problem, micro_batch: int | None) -> Gradient:
    """Return the gradient of the loss."""
    leaves = problem.leaves()
    with problem.surroundings():
        chunks = problem.chunks(micro_batch)
        return added(_graph(problem, leaves, *chunk, differentiable=False) for chunk in chunks)


def load_forward_mode() -> None:
    """Let torch load its forward mode, which warns of its own use of `torch.jit` the first time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        one = torch.ones(1)
        torch.func.jvp(lambda t: t, (one,), (one,))


def _gradient_of(problem: Problem, chunk: tuple[Tensor, Tensor]) -> Callable[..., Any]:
    return torch.func.grad(lambda theta: problem.value(theta, *chunk, fast=False))


class ForwardOverReverse:
    """Differentiate the gradient forwards along the vector."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        load_forward_mode()
        self._problem, self._micro_batch = problem, micro_batch

    def __call__(self, v: Theta) -> Theta:
        """Return H v."""
        problem = self._problem
        with problem.surroundings():
            return added(
                torch.func.jvp(_gradient_of(problem, chunk), (problem.theta,), (v,))[1]
                for chunk in problem.chunks(self._micro_batch)
            )


class Linearize:
    """Trace the gradient's derivative once, and replay its linear part."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        load_forward_mode()
        with problem.surroundings(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of torch's own constant folding
            self._maps = [
                torch.func.linearize(_gradient_of(problem, chunk), problem.theta)[1]
                for chunk in problem.chunks(micro_batch)
            ]

    def __call__(self, v: Theta) -> Theta:
        """Return H v."""
        return added(linear(v) for linear in self._maps)


class Compiled:
    """Compile forward over reverse, parameters as inputs (double backward cannot be compiled)."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        load_forward_mode()
        self._problem, self._micro_batch = problem, micro_batch

        def product(theta: Theta, v: Theta, images: Tensor, labels: Tensor) -> Theta:
            def value(theta: Theta) -> Tensor:
                return problem.loss(problem.outputs(theta, images), labels)

            return torch.func.jvp(torch.func.grad(value), (theta,), (v,))[1]

        self._product = torch.compile(product, dynamic=False)

    def __call__(self, v: Theta) -> Theta:
        """Return H v."""
        problem = self._problem
        with problem.surroundings():
            chunks = problem.chunks(self._micro_batch)
            return added(self._product(problem.theta, v, *chunk) for chunk in chunks)


PRODUCTS: dict[str, Callable[[Problem, int | None], Product]] = {
    "retained": Retained,
    "recompute": Recompute,
    "forward_over_reverse": ForwardOverReverse,
    "linearize": Linearize,
    "compiled": Compiled,
}


def graph_bytes(problem: Problem) -> tuple[int, int]:
    """Return the bytes that a retained graph saves: for any batch (weights that were folded), and an image.

    Measured on one image, and on that image twice.
    """
    one, two = (_saved_bytes(problem, count) for count in (1, 2))
    return max(2 * one - two, 0), max(two - one, 0)


def _saved_bytes(problem: Problem, count: int) -> int:
    """Return what the graph of the first image, `count` times over, saves; each storage counts once."""
    seen: dict[int, int] = {}
    kept = {p.untyped_storage().data_ptr() for p in problem.theta}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    first = torch.zeros(count, dtype=torch.int64, device=problem.device)
    with problem.surroundings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        leaves = problem.leaves()
        gradient = _graph(problem, leaves, problem.images[first], problem.labels[first])
        del gradient
    return sum(seen.values())
