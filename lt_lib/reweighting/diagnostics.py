"""What inverse reweighting did over an epoch, gathered without reading a value."""

import torch
from torch import Tensor, nn


class Diagnostics(nn.Module):
    """Sums over batches, in buffers: `calls` and `fallbacks` over all of training, the rest over the epoch."""

    calls: Tensor  # () batches
    fallbacks: Tensor  # () class appearances with loss 0, given the prior weight
    weight_sum: Tensor  # (C,) sum of the effective weights over the batches that held the class
    weight_steps: Tensor  # (C,) number of those batches
    samples: Tensor  # ()
    clamped_classes: Tensor  # () class appearances whose weight was clamped
    clamped_samples: Tensor  # () their samples

    EPOCH = ("weight_sum", "weight_steps", "samples", "clamped_classes", "clamped_samples")

    def __init__(self, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight_sum", torch.zeros(classes, dtype=dtype))
        self.register_buffer("weight_steps", torch.zeros(classes, dtype=torch.int64))
        for name in ("calls", "fallbacks", "samples", "clamped_classes", "clamped_samples"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def note(self, weights: Tensor, count: Tensor, present: Tensor, size: int, over: Tensor | None) -> None:
        """Add one batch: weights, counts, presence and clamped classes, each (C,), and its size."""
        self.calls += 1
        self.samples += size
        self.weight_sum += weights * present
        self.weight_steps += present
        if over is not None:
            self.clamped_classes += (over & present).sum()
            self.clamped_samples += torch.dot(over.to(count.dtype), count).long()

    def turn_epoch(self) -> None:
        """Start an epoch: set its sums to 0."""
        for name in self.EPOCH:
            getattr(self, name).zero_()

    def mean_weights(self) -> Tensor:
        """Mean weight of each class (C,) over the epoch's batches that held it; NaN if none was reweighted."""
        return self.weight_sum / self.weight_steps

    def clamped_shares(self) -> tuple[float, float]:
        """Shares of the epoch's class appearances and samples whose weight was clamped; NaN if there were none.

        Reads values: call it between epochs.
        """
        classes = float(self.clamped_classes / self.weight_steps.sum())
        return classes, float(self.clamped_samples / self.samples)
