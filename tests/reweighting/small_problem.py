"""The sine and cosine example of Theorem T2: a linear softmax model, 64 samples of 6 classes, float64."""

import torch
from torch import Tensor

from lt_lib.reweighting import InverseReweighting

COUNTS = (30, 16, 9, 5, 3, 1)
BETA = torch.tensor([1 / (c + 1) for c in range(6)], dtype=torch.float64)
BETA = BETA / BETA.mean()


def example() -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (64, 5), weight (6, 5) that wants a gradient, labels (64,)."""
    i, j, k = (torch.arange(n, dtype=torch.float64) for n in (64, 5, 6))
    inputs = torch.sin(0.7 * i[:, None] + 1.3 * j)
    weight = (0.3 * torch.cos(k[:, None] + 2 * j)).requires_grad_()
    return inputs, weight, torch.repeat_interleave(torch.arange(6), torch.tensor(COUNTS))


def dense_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sample losses (B,) and class means (6,), written out with logsumexp and a loop over classes."""
    sample = torch.logsumexp(logits, 1) - logits[torch.arange(len(labels)), labels]
    return sample, torch.stack([sample[labels == c].mean() for c in range(6)])


def module(beta: Tensor | None = BETA, **options) -> InverseReweighting:
    """A float64 module whose macro factor is `beta`."""
    loss = InverseReweighting(COUNTS, dtype=torch.float64, **options)
    if beta is not None:
        loss.macro.copy_(beta)
    return loss


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))
