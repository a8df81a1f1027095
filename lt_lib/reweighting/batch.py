"""A batch of sample losses seen by class."""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """A batch seen by sample, so that no step makes anything of the classes' number but two sums.

    Each vector (B,) holds for a sample what belongs to its class; a sum over the classes present is a sum
    over samples under `share`.
    """

    labels: Tensor
    loss: Tensor  # of the sample itself, with gradient
    ones: Tensor
    class_loss: Tensor  # mean over the class's samples, with gradient
    samples: Tensor  # of the class, in the losses' dtype
    share: Tensor  # 1 / samples
    classes: Tensor  # () number of classes present


def gather_batch(loss: Tensor, labels: Tensor, classes: int) -> Batch:
    """Sum sample losses (B,) by class, without a loop over classes and without reading a value."""
    zeros, ones = loss.new_zeros(classes), torch.ones_like(loss.detach())
    samples = zeros.index_add(0, labels, ones).index_select(0, labels)
    class_loss = zeros.index_add(0, labels, loss).index_select(0, labels) / samples
    share = samples.reciprocal()
    return Batch(labels, loss, ones, class_loss, samples, share, share.sum())
