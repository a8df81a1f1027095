"""What inverse reweighting did over an epoch, gathered without reading a value."""

import torch
from torch import Tensor, nn

from lt_lib.reweighting.record import add_rows


class Diagnostics(nn.Module):
    """Sums over batches, in buffers: `calls` and `fallbacks` over all of training, `sums` over the epoch.

    `sums` (C, 5) holds for each class its effective weight summed over the batches that held it, the number
    of those batches, its samples, the batches in which its weight was clamped, and its samples in those. It
    is floating-point like the losses; whole numbers in it are exact up to 2^24.
    """

    calls: Tensor  # () batches
    fallbacks: Tensor  # () class appearances with loss 0, which were given the prior weight
    sums: Tensor

    def __init__(self, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fallbacks", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(classes, 5, dtype=dtype))

    @torch.inference_mode()
    def note(
        self, labels: Tensor, weights: Tensor, ones: Tensor, samples: Tensor, over: Tensor | None
    ) -> None:
        """Add one batch: for each sample (B,) its label, weight, 1, samples of its class, clamped or not."""
        self.calls += 1
        columns = [weights, ones, samples]
        if over is not None:
            clamped = over.to(samples.dtype)
            columns += [clamped, clamped * samples]
        add_rows(self.sums[:, : len(columns)], labels, torch.stack(columns, dim=1))

    @torch.no_grad()
    def note_zeros(self, losses: Tensor, share: Tensor) -> None:
        """Count the classes whose loss is 0, from losses and 1 / samples of the class, both (B,)."""
        self.fallbacks += torch.dot((losses <= 0).to(share.dtype), share).round().long()

    def turn_epoch(self) -> None:
        """Start an epoch: set its sums to 0."""
        self.sums.zero_()

    def mean_weights(self) -> Tensor:
        """Mean weight of each class (C,) over the epoch's batches that held it; NaN if there were none."""
        return self.sums[:, 0] / self.sums[:, 1]

    def clamped_shares(self) -> tuple[float, float]:
        """Shares of the epoch's class appearances and of its samples whose weight was clamped.

        NaN if nothing was reweighted. Reads values: call it between epochs.
        """
        _, steps, samples, clamped_steps, clamped_samples = self.sums.sum(0).unbind()
        return float(clamped_steps / steps), float(clamped_samples / samples)
