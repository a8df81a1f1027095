"""How far a network's probabilities are from frequencies: likelihood and calibration error.

It stands apart from `lt_lib.metrics`, on which trained runs depend.
"""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, check_finite, check_labels


def negative_log_likelihood(logits: Any, labels: Any, balanced: bool = False) -> float:
    r"""Return the mean of :math:`-\log\mathrm{softmax}_{y_i}(z_i)`, in nats.

    Args:
        logits: (n, C).
        labels: (n,) in 0..C-1.
        balanced: mean over the present classes of each class's mean, instead of over images.

    Raises:
        ValueError: shapes or labels that do not fit, or a logit that is not finite.
    """
    values, truth = _enter(logits, labels)
    losses = -values.log_softmax(1).gather(1, truth[:, None])[:, 0]
    return float(image_weights(truth, balanced) @ losses)


def calibration_error(logits: Any, labels: Any, bins: int = 15, balanced: bool = False) -> float:
    r"""Return the expected calibration error of the predicted class, between 0 and 1.

    :math:`\sum_m\frac{|B_m|}n\,|\mathrm{acc}(B_m)-\mathrm{conf}(B_m)|`, eq. 3 of Guo et al. 2017 (arXiv
    1706.04599), where bin m of M holds the images whose largest probability lies in ((m-1)/M, m/M]; they take
    M = 15. It depends on the bins, and noise within a bin makes it larger than 0 for calibrated
    probabilities too (by about the bin's standard error), so compare values from equally many images only.

    Args:
        logits: (n, C).
        labels: (n,) in 0..C-1.
        bins: M, at least 1.
        balanced: weigh the present classes alike instead of images.

    Raises:
        ValueError: as `negative_log_likelihood`, or fewer than one bin.
    """
    if bins < 1:
        raise ValueError(f"`bins` must be at least 1; found {bins}. 15 is usual.")
    values, truth = _enter(logits, labels)
    confidence, guess = values.softmax(1).max(1)
    weighted = image_weights(truth, balanced) * ((guess == truth).double() - confidence)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    return float(torch.zeros(bins, dtype=torch.float64).index_add(0, place, weighted).abs().sum())


def image_weights(labels: Tensor, balanced: bool) -> Tensor:
    """Return weights (n,) float64 that sum to 1: 1 / n, or alike for each present class."""
    if not balanced:
        return torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    counts = torch.bincount(labels).double()
    return 1 / ((counts > 0).sum() * counts[labels])


def _enter(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    values = as_tensor(logits, "logits").detach().cpu().double()
    truth = as_tensor(labels, "labels").detach().cpu()
    if values.ndim != 2 or len(values) == 0 or truth.shape != values.shape[:1]:
        raise ValueError(
            "`logits` must be (n, C) and `labels` (n,), n at least 1; found shapes "
            f"{tuple(values.shape)} and {tuple(truth.shape)}."
        )
    check_finite(values, "logits")
    return values, check_labels(truth, values.shape[1])
