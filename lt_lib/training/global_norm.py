"""Batch normalisation over the rows of all processes, as one process with the whole batch computes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lt_lib._processes import Processes, summed


@contextmanager
def global_batch_norm(model: nn.Module, team: Processes) -> Iterator[None]:
    """Within the block, let the BatchNorm layers of `model` take mean and variance over all processes.

    Layers in eval mode normalise by their running statistics as ever. Why not `torch.nn.SyncBatchNorm`: it
    refuses the CPU, and replaces modules, so that a caller's network would come back changed. Here mean, then
    centred squares are summed (two sums forwards and two back a layer), which keeps the digits that a
    one-pass variance loses.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    for layer in layers:
        layer.forward = partial(normalised, layer, team)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def normalised(layer: Any, team: Processes, inputs: Tensor) -> Tensor:
    """Return what the BatchNorm `layer`, in train mode, gives for this process's rows of `inputs`.

    Mean and variance are those of all processes' rows; the running statistics move as those of one process
    would, to the same bits in each process. A process may have no rows.

    Raises:
        ValueError: there is one value a channel over all processes.
    """
    values = inputs.float() if inputs.dtype in (torch.float16, torch.bfloat16) else inputs
    dims = [0, *range(2, inputs.ndim)]
    shape = [1, -1] + [1] * (inputs.ndim - 2)
    own = values.new_full((1,), values.numel() // values.shape[1])
    sums = summed(torch.cat([values.sum(dims), own]), team)
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = values - mean.view(shape)
    variance = summed(centred.square().sum(dims), team) / count
    _track(layer, mean.detach(), variance.detach(), count)
    scaled = centred * torch.rsqrt(variance + layer.eps).view(shape)
    if layer.affine:
        scaled = scaled * layer.weight.view(shape) + layer.bias.view(shape)
    return scaled.to(inputs.dtype)


@torch.no_grad()
def _track(layer: Any, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Move the running statistics, the variance unbiased, as `torch.nn.BatchNorm2d` does."""
    if layer.running_mean is None:
        return
    layer.num_batches_tracked.add_(1)
    factor = layer.momentum if layer.momentum is not None else 1 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean.to(layer.running_mean), factor)
    layer.running_var.lerp_((variance * count / (count - 1)).to(layer.running_var), factor)
