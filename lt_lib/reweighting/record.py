"""Memory of losses beyond the batch: an exponential average, or the previous epoch's mean."""

import torch
from torch import Tensor, nn


class LossRecord(nn.Module):
    """Remembers K losses, in buffers only: mode "batch" (nothing), "running" or "epoch".

    Running: r = momentum r + (1 - momentum) l at each appearance, r = l at the first; the new part carries
    its gradient. Epoch: the mean over the previous epoch that held an appearance, a constant.
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

    def observe(self, loss: Tensor, count: Tensor) -> Tensor:
        """Take in mean losses (K,) over `count` samples (0: absent; updates only in train mode), return those to use.

        An entry without a record yet is the batch's own.
        """
        if self.mode == "batch":
            return loss
        if self.mode == "epoch":
            if self.training:
                self.total += loss.detach() * count
                self.weight += count
            return torch.where(self.known, self.value.to(loss.dtype), loss)
        blended = self.momentum * self.value.to(loss.dtype) + (1 - self.momentum) * loss
        present = count > 0
        used = torch.where(present, torch.where(self.known, blended, loss), self.value.to(loss.dtype))
        if self.training:  # replaced, not overwritten: autograd holds the old tensors until the backward pass
            self.value, self.known = used.detach().to(self.value.dtype), self.known | present
        return used

    def turn_epoch(self) -> None:
        """Start an epoch: what the last one summed becomes the value."""
        if self.mode != "epoch":
            return
        fresh = self.weight > 0
        self.value = torch.where(fresh, self.total / self.weight.clamp(min=1), self.value)
        self.known = self.known | fresh
        self.total.zero_()
        self.weight.zero_()
