"""Random numbers that depend on (seed, epoch, purpose) alone: any epoch stands alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

ORDER, AUGMENT, LAYERS, MIX, PARTNER_ORDER, PARTNER_AUGMENT = range(
    6
)  # purposes: independent streams of one epoch


def epoch_seed(seed: int, epoch: int, purpose: int, *more: int) -> int:
    """Return a 63-bit seed mixed from the numbers, so that neighbours give unrelated streams.

    `more` are further numbers, such as a view or an image; zeros at the end count as nothing.
    """
    while more and more[-1] == 0:
        more = more[:-1]
    state = np.random.SeedSequence([seed, epoch, purpose, *more]).generate_state(1, np.uint64)[0]
    return int(state) >> 1


def epoch_generator(seed: int, epoch: int, purpose: int, *more: int) -> torch.Generator:
    """Return a fresh CPU generator for one purpose in one epoch (see `epoch_seed`)."""
    return torch.Generator().manual_seed(epoch_seed(seed, epoch, purpose, *more))


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
