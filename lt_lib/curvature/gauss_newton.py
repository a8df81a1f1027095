"""Ways to multiply by the Gauss-Newton matrix: J along the vector, the loss's Hessian, J transposed."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import grad

from lt_lib.curvature.problem import Problem, Theta
from lt_lib.curvature.products import Product, _differentiate, added, load_forward_mode
from lt_lib.curvature.twice import Foldable


class _Chunk:
    """The graphs of one micro-batch: outputs, their gradient as a map of `u`, and the loss's gradient."""

    def __init__(self, problem: Problem, leaves: Theta, images: Tensor, labels: Tensor) -> None:
        with Foldable(linear=True):
            self.outputs = problem.outputs(leaves, images)
        self.used = self.outputs.requires_grad
        if not self.used:
            return
        # the gradient is linear in u: its derivative along v is <J v, .>
        self.u = torch.zeros_like(self.outputs, requires_grad=True)
        self.pulled = grad(self.outputs, leaves, self.u, create_graph=True, materialize_grads=True)
        self.z = self.outputs.detach().requires_grad_()
        value = problem.loss(self.z, labels)
        self.used = value.requires_grad  # a loss that does not see the outputs bends nothing
        if self.used:
            self.slope = grad(value, (self.z,), create_graph=True)

    def product(self, leaves: Theta, v: Theta, keep: bool) -> Theta:
        if not self.used:
            return tuple(torch.zeros_like(p) for p in leaves)
        (pushed,) = _differentiate(self.pulled, (self.u,), v, keep=True)
        (bent,) = _differentiate(self.slope, (self.z,), (pushed,), keep=keep)
        return grad(self.outputs, leaves, bent, retain_graph=keep, materialize_grads=True)


class RetainedGaussNewton:
    """Graphs kept; a product costs two forward and two backward convolutions a layer."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        self._leaves = problem.leaves()
        with problem.surroundings():
            self._chunks = [_Chunk(problem, self._leaves, *chunk) for chunk in problem.chunks(micro_batch)]

    def __call__(self, v: Theta) -> Theta:
        """Return G v."""
        return added(chunk.product(self._leaves, v, keep=True) for chunk in self._chunks)


class RecomputeGaussNewton:
    """Graphs built for each vector, one micro-batch at a time."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        self._problem, self._micro_batch = problem, micro_batch

    def __call__(self, v: Theta) -> Theta:
        """Return G v."""
        problem, leaves = self._problem, self._problem.leaves()
        with problem.surroundings():
            return added(
                _Chunk(problem, leaves, *chunk).product(leaves, v, keep=False)
                for chunk in problem.chunks(self._micro_batch)
            )


class TransformedGaussNewton:
    """`torch.func`: jvp of the outputs, jvp of the loss's gradient, vjp of the outputs."""

    def __init__(self, problem: Problem, micro_batch: int | None) -> None:
        load_forward_mode()
        self._problem, self._micro_batch = problem, micro_batch

    def __call__(self, v: Theta) -> Theta:
        """Return G v."""
        problem = self._problem
        with problem.surroundings():
            return added(self._one(v, *chunk) for chunk in problem.chunks(self._micro_batch))

    def _one(self, v: Theta, images: Tensor, labels: Tensor) -> Theta:
        def outputs(theta: Theta) -> Tensor:
            with Foldable(fast=False):
                return self._problem.outputs(theta, images)

        theta = self._problem.theta
        z, pushed = torch.func.jvp(outputs, (theta,), (v,))[:2]
        slope = torch.func.grad(lambda z: self._problem.loss(z, labels))
        bent = torch.func.jvp(slope, (z,), (pushed,))[1]
        (part,) = torch.func.vjp(outputs, theta)[1](bent)
        return part


GAUSS_NEWTON_PRODUCTS: dict[str, Callable[[Problem, int | None], Product]] = {
    "retained": RetainedGaussNewton,
    "recompute": RecomputeGaussNewton,
    "forward_over_reverse": TransformedGaussNewton,
}
