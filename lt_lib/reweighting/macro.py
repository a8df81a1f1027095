"""The macro factor: from the number of batches that held a class (arXiv 2605.10047)."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_counts
from lt_lib.reweighting._entry import check_number


def macro_factor(batch_counts: Tensor, gamma: float, shares: Tensor | None) -> Tensor:
    """Compute max(B_c, 1)^-gamma over its mean under `shares` (C,); None: not divided. No check."""
    dtype = torch.get_default_dtype() if shares is None else shares.dtype
    factor = batch_counts.clamp(min=1).to(dtype).pow(-gamma)
    return factor if shares is None else factor / torch.dot(factor, shares)


def macro_weights(batch_counts: Any, gamma: float = 1.0) -> Tensor:  # (C,) float64
    r"""Macro factor of each class, :math:`\beta_c \propto \max(B_c, 1)^{-\gamma}`, with mean one.

    B_c is the number of batches in which class c appeared. The paper states the proportionality only; the
    maximum with 1 and the mean over all classes are those of the released code.

    Args:
        batch_counts: B_c, (C,), whole numbers at least 0.
        gamma: exponent, at least 0; 0 gives ones.

    Returns:
        Factors (C,), float64.

    Raises:
        ValueError: a count is negative or fractional, or `gamma` is negative or not finite.
    """
    gamma = check_number(gamma, "gamma", low=0)
    counts = check_counts(batch_counts, "batch_counts", minimum=0)
    shares = torch.full_like(counts, 1 / len(counts), dtype=torch.float64)
    return macro_factor(counts, gamma, shares)


def expected_batch_counts(class_counts: Any, batch: int) -> Tensor:  # (C,) float64
    r"""Expected number of batches of one shuffled epoch that hold each class, exactly.

    With N images, n_c of them in class c, a batch of b is a uniform draw without replacement, so it misses
    the class with probability :math:`\binom{N-n_c}{b}/\binom{N}{b}`; the expectation adds over the full
    batches and a short last one, which is kept.

    Args:
        class_counts: images of each class, (C,), at least 1.
        batch: images a batch, at least 1.

    Returns:
        Expected B_c of one epoch, (C,), float64, between 0 and the number of batches.

    Raises:
        ValueError: a class is empty or `batch` is below 1.
    """
    counts = check_counts(class_counts).to(torch.float64)
    size = int(check_number(batch, "batch", low=1))
    total = int(counts.sum())
    full, last = divmod(total, size)
    expected = torch.zeros_like(counts)
    for images, times in ((min(size, total), full), (last, 1)):
        if images and times:
            expected += times * -torch.expm1(_log_miss(counts, total, images))
    return expected


def _log_miss(counts: Tensor, total: int, images: int) -> Tensor:
    """Log-probability (C,) that `images` draws without replacement from `total` miss each class."""
    rest = total - counts
    possible = rest >= images
    rest = torch.where(possible, rest, float(images))
    ends = torch.tensor([total - images + 1.0, total + 1.0], dtype=torch.float64, device=counts.device)
    drawn, whole = torch.lgamma(ends)
    log_miss = torch.lgamma(rest + 1) - torch.lgamma(rest - images + 1) + drawn - whole
    return torch.where(possible, log_miss, -torch.inf)
