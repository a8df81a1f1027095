"""Which image stands at which place of an epoch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lt_lib._checks import check_choice

# share of class c among the places, up to a constant, with n_c images
_CLASS_SHARES = {"balanced": 0.0, "inverse": -1.0, "square_root": 0.5}  # n_c to this power
SAMPLINGS = ("instance", *_CLASS_SHARES)


@dataclass(frozen=True)
class Places:
    """One epoch's images in order, and the number under which each finds its random choices."""

    images: Tensor  # (n,) int64, position in the part
    keys: Tensor  # (n,) int64: the image itself; with replacement the place, since an image comes twice


def draw_places(labels: Tensor, sampling: str, generator: torch.Generator) -> Places:
    r"""Return n places for n images.

    - instance: every image once, in random order;
    - balanced: with replacement, every class alike (Kang et al. 2020, arXiv 1910.09217, q = 0);
    - square_root: with replacement, class c in proportion to :math:`\sqrt{n_c}` (the same, q = 1/2);
    - inverse: with replacement, class c in proportion to :math:`1/n_c` (the reversed sampler of Zhou et al.
      2020, arXiv 1912.02413, eq. 4).

    With replacement an image is met with another augmentation each time.

    Args:
        labels: (n,) int64, on the CPU.
        sampling: one of `SAMPLINGS`.
        generator: on the CPU.

    Raises:
        ValueError: `sampling` is unknown.
    """
    check_choice(sampling, SAMPLINGS, "sampling")
    if sampling == "instance":
        order = torch.randperm(len(labels), generator=generator)
        return Places(order, order)
    counts = torch.bincount(labels).double()
    shares = counts.clamp(min=1).pow(_CLASS_SHARES[sampling] - 1)[labels]  # of each image
    edges = shares.cumsum(0)
    values = torch.rand(len(labels), generator=generator, dtype=torch.float64) * edges[-1]
    images = torch.searchsorted(edges, values, right=True).clamp(max=len(labels) - 1)
    return Places(images, torch.arange(len(labels)))
