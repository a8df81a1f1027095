"""Memory of losses beyond the batch: an exponential average, or the previous epoch's mean."""

import torch
from torch import Tensor, nn


def add_rows(target: Tensor, index: Tensor, rows: Tensor | int) -> None:
    """Add `rows` to the rows `index` of `target`, in place, each target row once.

    Entries of `index` that are equal must bring equal rows: one of them is used, so the result does not
    depend on the order. Nothing of the target's size is made and no value is read.
    """
    target.index_copy_(0, index, target.index_select(0, index).add_(rows))


class LossRecord(nn.Module):
    """Remembers K losses, in buffers only: mode "batch" (nothing), "running" or "epoch".

    Running: r = momentum r + (1 - momentum) l at each appearance, r = l at the first; the new part carries
    its gradient. Epoch: the mean over the samples of the last finished epoch that had any, a constant.
    """

    value: Tensor
    known: Tensor
    total: Tensor
    weight: Tensor

    def __init__(self, size: int, mode: str, momentum: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.mode, self.momentum = mode, momentum
        size = 0 if mode == "batch" else size
        self.register_buffer("value", torch.zeros(size, dtype=dtype))  # (K,)
        self.register_buffer("known", torch.zeros(size, dtype=torch.bool))  # (K,)
        self.register_buffer("total", torch.zeros(size, dtype=dtype))  # (K,) sum in this epoch
        self.register_buffer("weight", torch.zeros(size, dtype=dtype))  # (K,) samples in this epoch

    def observe(self, losses: Tensor, index: Tensor) -> Tensor:
        """Take in losses (B,) of the entries `index` (B,) and return those to use.

        Equal indices bring equal losses. An entry without a record yet is the batch's own. Updates only in
        train mode.
        """
        if self.mode == "batch":
            return losses
        known, value = self.known[index], self.value[index].to(losses.dtype)
        new = losses.detach().to(self.value.dtype)
        if self.mode == "epoch":
            if self.training:
                self.total.index_add_(0, index, new)
                self.weight.index_add_(0, index, torch.ones_like(new))
            return torch.where(known, value, losses)
        used = torch.where(known, self.momentum * value + (1 - self.momentum) * losses, losses)
        if self.training:
            self.value.index_copy_(0, index, used.detach().to(self.value.dtype))
            self.known.index_fill_(0, index, True)
        return used

    def turn_epoch(self) -> None:
        """Start an epoch: what the last one summed becomes the value."""
        if self.mode != "epoch":
            return
        fresh = self.weight > 0
        self.value.copy_(torch.where(fresh, self.total / self.weight.clamp(min=1), self.value))
        self.known |= fresh
        self.total.zero_()
        self.weight.zero_()
