"""Process-wide numerical settings, set for the duration of a block and then restored."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """Run the block with `threads` CPU threads (None: as it is). Sums, hence bits, depend on their number."""
    before = torch.get_num_threads()
    if threads is not None and threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On CUDA: deterministic cuDNN kernels, chosen without timing, and no TF32. Elsewhere: nothing to do."""
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision
    cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision = True, False, "ieee"
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision = before


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the bfloat16 autocast context, switched off for "float32"."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
