"""The surroundings in which a model's curvature is measured, put back afterwards whatever happens."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_TURN = RLock()


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run the block with `model` in eval mode, gradients on, autocast off and exact kernels.

    Modes of the modules and the global random state return to what they were, after an exception too.
    Parameters and buffers are not the block's business: it works on copies of them.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False  # not `eval()`, which a module may have given further work
    try:
        with exact(device), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Run the block with gradients on, autocast off; on CUDA also deterministic cuDNN and no TF32.

    Attention runs as plain matrix products: its fused kernels have no second derivative. That is a switch of
    the whole process, so threads take turns.
    """
    with ExitStack() as stack:
        stack.enter_context(_TURN)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            stack.enter_context(_repeatable_kernels())
        yield


# PyTorch's ways to say it
_UNDIFFERENTIABLE = re.compile(r"(?:derivative for|forward AD with) '?(?:aten::)?_?(\w+)")


@contextmanager
def explained() -> Iterator[None]:
    """Run the block; say in one sentence that PyTorch cannot differentiate an operation twice.

    Raises:
        ValueError: it cannot; the operation is named.
    """
    try:
        yield
    except RuntimeError as error:
        named = _UNDIFFERENTIABLE.search(str(error))
        if named is None:
            raise
        raise ValueError(
            f"PyTorch cannot differentiate `{named[1].removesuffix('_backward')}`, which `model` or `loss` "
            "uses, a second time. Write it with operations that it can, or do without curvature (a bias fit "
            "needs none)."
        ) from error


@contextmanager
def _repeatable_kernels() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    products: Any = torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision, products.fp32_precision
    cudnn.deterministic, cudnn.benchmark = True, False
    cudnn.conv.fp32_precision = products.fp32_precision = "ieee"
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before[:2]
        cudnn.conv.fp32_precision, products.fp32_precision = before[2:]


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Run the block; afterwards every buffer of `model` is the tensor that it was, with the bits that it had.

    For blocks that call the model itself, whose forward may count calls or keep running means.
    """
    places = [(module, n, b) for module in model.modules() for n, b in module._buffers.items()]
    with torch.inference_mode(False), torch.no_grad():
        copies = [None if b is None else b.detach().clone() for _, _, b in places]
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, name, buffer), copy in zip(places, copies, strict=True):
                module._buffers[name] = buffer
                if buffer is not None and copy is not None:
                    buffer.copy_(copy)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside a (distributed) data-parallel wrapper, or `model` itself."""
    wrappers = nn.DataParallel, nn.parallel.DistributedDataParallel
    return model.module if isinstance(model, wrappers) else model


def check_batch_norm(model: nn.Module) -> None:
    """Refuse BatchNorm layers without running statistics.

    Raises:
        ValueError: such a layer exists (it is named).
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"BatchNorm `{name}` keeps no running statistics, so its output mixes the images of a batch "
                "and curvature would depend on how they are split. Build it with "
                "`track_running_stats=True` and pass some batches through it in training mode."
            )
