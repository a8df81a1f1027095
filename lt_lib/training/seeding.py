"""Random numbers that depend on (seed, epoch, purpose) alone: any epoch stands alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

ORDER, AUGMENT, LAYERS = range(3)  # purposes: independent streams of one epoch


def epoch_seed(seed: int, epoch: int, purpose: int) -> int:
    """Return a 63-bit seed mixed from the three numbers, so that neighbours give unrelated streams."""
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)[0]
    return int(state) >> 1


def epoch_generator(seed: int, epoch: int, purpose: int) -> torch.Generator:
    """Return a fresh CPU generator for one purpose in one epoch."""
    return torch.Generator().manual_seed(epoch_seed(seed, epoch, purpose))


@contextmanager
def layer_randomness(seed: int, epoch: int, device: torch.device) -> Iterator[None]:
    """Give layers that draw from the global state (dropout) their own stream; then restore it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.random.default_generator.manual_seed(epoch_seed(seed, epoch, LAYERS))
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(epoch_seed(seed, epoch, LAYERS))
        yield
