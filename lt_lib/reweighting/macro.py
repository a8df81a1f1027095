"""The macro factor: from the number of batches that held a class (arXiv 2605.10047)."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_counts
from lt_lib.reweighting._entry import check_number

_FACTORS = 2**18  # factors handled at a time
_CERTAIN = 45.0  # exp(-45) < 1e-19


def macro_factor(batch_counts: Tensor, gamma: float, shares: Tensor | None) -> Tensor:
    """Compute max(B_c, 1)^-gamma over its mean under `shares` (C,); None: not divided. No check."""
    dtype = torch.get_default_dtype() if shares is None else shares.dtype
    counts = batch_counts.clamp(min=1).to(dtype)
    if shares is None:
        return counts.pow(-gamma)
    factor = relative_power(counts, gamma)
    return factor / torch.dot(factor, shares)


def relative_power(counts: Tensor, power: float) -> Tensor:
    """Compute counts^-power up to a common factor, for counts (C,) of at least 1 that are then normalised.

    Beyond power 1 all of counts^-power can underflow, so it is taken relative to the smallest count.
    """
    return (counts if power <= 1 else counts / counts.amin()).pow(-power)


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
        ValueError: a class is empty, or `batch` is below 1 or fractional.
    """
    counts = check_counts(class_counts).to(torch.float64)
    size = int(check_number(batch, "batch", low=1))
    if size != batch:
        raise ValueError(f"`batch` must be a whole number of images; found {batch!r}. Round it.")
    total = int(counts.sum())
    full, last = divmod(total, size)
    expected = torch.zeros_like(counts)
    for images, times in ((min(size, total), full), (last, 1)):
        if images and times:
            expected += times * -torch.expm1(_log_miss(counts, total, images))
    return expected.masked_fill(counts == 1, 1.0)  # to the last bit: it is in one batch


def _log_miss(counts: Tensor, total: int, images: int) -> Tensor:
    """Log-probability (C,) that `images` draws without replacement from `total` miss each class.

    The product of `1 - larger / (total - i)` over i < smaller, where smaller and larger are the two of the
    class's images and the draws: a difference of log-gammas would lose as many digits as `total` has. A
    product below exp(-_CERTAIN) is 0 beside 1, and its remaining factors are left out.
    """
    larger, smaller = counts.clamp(min=images), counts.clamp(max=images)
    log_miss = torch.zeros_like(counts)
    rows = max(1, _FACTORS // len(counts))
    for start in range(0, int(smaller.max()), rows):
        i = torch.arange(start, start + rows, dtype=counts.dtype, device=counts.device)
        i = torch.minimum(i[:, None], smaller - 1)
        hit, missed = larger / (total - i), (total - i - larger).clamp(min=0) / (total - i)
        # each logarithm from the share that has its digits
        logs = torch.where(hit < 0.5, torch.log1p(-hit), missed.log())
        own = torch.arange(start, start + rows, device=counts.device)[:, None] < smaller
        log_miss += torch.where(own, logs, 0).sum(0)
        if bool(((log_miss < -_CERTAIN) | (smaller <= start + rows)).all()):
            break
    return log_miss
