"""Hessian and Gauss-Newton matrix of a model's loss, as operators on flat vectors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice, check_whole
from lt_lib.curvature.gauss_newton import GAUSS_NEWTON_PRODUCTS
from lt_lib.curvature.guard import exact, explained
from lt_lib.curvature.operators import LinearOperator
from lt_lib.curvature.problem import Problem
from lt_lib.curvature.products import PRODUCTS, Product, gradient_of_loss, graph_bytes
from lt_lib.curvature.rules import MEMORY_LIMIT, RECOMPUTE_SHARE, choose


class _ModelOperator(LinearOperator):
    _products: dict[str, Callable[[Problem, int | None], Product]]

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        loss: Any = None,
        params: str | Sequence[str] | None = None,
        method: str | None = None,
        micro_batch: int | None = None,
        normaliser: float | None = None,
        channels_last: bool | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        if method is not None:
            check_choice(method, self._products, "method")
        if micro_batch is not None:
            check_whole(micro_batch, "micro_batch")
        device = _device_type(model)
        layout = choose(device, True).channels_last if channels_last is None else channels_last
        problem = Problem(model, images, labels, loss, params, normaliser, layout)
        if method is None:
            method, micro_batch = _by_rule(problem, micro_batch, memory_limit)
        if micro_batch is not None and micro_batch < len(problem.images):
            problem.check_split(micro_batch)
        self.size, self.dtype, self.device = problem.size, problem.dtype, problem.device
        self.names, self.shapes, self.normaliser = problem.names, problem.shapes, problem.normaliser
        self.method, self.micro_batch = method, micro_batch
        self._problem, self._split = problem, problem.split
        with explained():
            self._product = self._products[method](problem, micro_batch)

    def _apply(self, v: Tensor) -> Tensor:
        with explained(), exact(self.device):
            return _flat(self._product(self._split(v)))

    def gradient(self) -> Tensor:
        """Return the gradient (P,) of the loss; no further work where the method has kept its graph."""
        kept = getattr(self._product, "gradient", None)
        with exact(self.device):
            return _flat(kept() if kept else gradient_of_loss(self._problem, self.micro_batch))

    def split(self, v: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector (P,) by parameter name, in the parameters' shapes."""
        return dict(zip(self.names, self._split(v), strict=True))


class HessianOperator(_ModelOperator):
    r"""Hessian of :math:`\frac1Z\sum_i\ell(f_\theta(x_i),y_i)` at the model's parameters when it was built.

    One normaliser Z divides one sum over all images, so micro-batches, uneven ones too, add up to the same
    operator, weighted loss or not. (A mean of batch means does not: hessian-eigenthings 1.0.0a5 weights
    batches equally, and there as in curvlinops 3.0.1 a class-weighted loss depends on the split.) A loss that
    mixes the samples of a batch (batch class means, inverse reweighting) has no such sum: it is measured on
    all images at once, and refused with smaller micro-batches.

    The Hessian is that of the smooth piece on which the weights lie. Where many ReLU inputs are zero up to
    rounding, as on constant backgrounds (equal pixels give one value to thousands of positions), the order of
    a sum decides which piece that is: methods, devices and batch sizes then differ by far more than rounding.
    Small noise on the images removes such ties.

    The model is in eval mode while it is called: BatchNorm uses its running statistics, Dropout is off.
    Parameters, buffers, modes, `requires_grad`, `.grad` and random state stay as they were. The operator
    keeps copies of parameters and buffers (not of the images): change the weights, then build another.

    Flat vectors follow `named_parameters()`, restricted to the chosen ones (`names`, `shapes`). A parameter
    that the loss does not use, or uses linearly, has a block of zeros.

    Args:
        model: on any device, float32 or float64; data-parallel wrappers are taken off (one process only).
        images: (N, ...) as the network takes them, normalised.
        labels: (N, ...) as the loss takes them.
        loss: None or "cross_entropy"; a loss of `lt_lib.losses`; a loss module of PyTorch; or a function
            (outputs, labels) -> (B,), one term a sample.
        params: glob pattern or patterns of parameter names; None: those that require gradients.
        method: "retained", "recompute", "forward_over_reverse", "linearize" or "compiled"; None: by the table
            in `lt_lib.curvature.rules`. The last three use `torch.func`, which cannot run losses that keep
            state (inverse reweighting with running or detached class losses).
        micro_batch: images at once; None: all, or what `memory_limit` allows.
        normaliser: Z; None: the loss's own over all images (their number for a mean, the sum of the weights
            for the mean of a class-weighted `torch.nn.CrossEntropyLoss`, 1 for a sum).
        channels_last: memory format of images and activations; None: by the table.
        memory_limit: bytes that a retained graph may take; above, the table recomputes in micro-batches.

    Raises:
        ValueError: half precision, pixels in uint8 or not finite, class numbers out of range, no parameters,
            a pattern without a match, BatchNorm without running statistics, a model whose outputs are random
            in eval mode, a loss without one term a sample, an unknown method, micro-batches of a loss that
            mixes samples.
    """

    _products = PRODUCTS


class GaussNewtonOperator(_ModelOperator):
    r"""Gauss-Newton matrix :math:`\frac1Z\sum_iJ_i^\top(\nabla_z^2\ell_i)J_i`, J the Jacobian of the outputs.

    Positive semi-definite for a loss that is convex in the outputs; equal to the Hessian where outputs are
    linear in the parameters. Arguments as in `HessianOperator`; methods "retained", "recompute" and
    "forward_over_reverse".
    """

    _products = GAUSS_NEWTON_PRODUCTS


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def _device_type(model: nn.Module) -> str:
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((p.device.type for p in parameters), "cpu")


def _by_rule(problem: Problem, micro_batch: int | None, limit: int) -> tuple[str, int | None]:
    fixed, each = graph_bytes(problem)
    rule = choose(problem.device.type, fixed + each * len(problem.images) <= limit)
    if rule.method == "recompute" and micro_batch is None:
        micro_batch = max(1, (limit // RECOMPUTE_SHARE - fixed) // max(each, 1))
        micro_batch = min(micro_batch, len(problem.images))
    return rule.method, micro_batch
