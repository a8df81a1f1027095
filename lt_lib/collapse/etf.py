"""The simplex equiangular tight frame, and how near to it a class-mean matrix of given dimension can come."""

import math

import torch
from torch import Tensor


def generator_of(seed: int | torch.Generator) -> torch.Generator:
    """Return `seed` as a CPU generator of its own, or the generator that was passed."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(seed)


def nc2_floor(classes: int, dim: int) -> float:
    """Return the smallest NC2 that centred class means in `dim` dimensions can have (Theorem T1 (vi)).

    `sqrt(2 - 2 sqrt(dim / (C - 1)))` for dim < C - 1, where no simplex ETF exists; 0 otherwise. Centred
    tight frames attain it.

    Raises:
        ValueError: fewer than 2 classes, or fewer than 1 dimension.
    """
    check_sizes(classes, dim)
    return math.sqrt(max(0.0, 2 - 2 * math.sqrt(dim / (classes - 1))))


def simplex_etf(classes: int, dim: int, seed: int | torch.Generator = 0) -> Tensor:
    """Return a simplex ETF: `classes` unit rows in `dim` dimensions, each pair at cosine -1/(C - 1).

    The rows E satisfy `E E^T = (C I - 1 1^T) / (C - 1)` and sum to zero. They are an orthonormal basis of the
    hyperplane `1^T x = 0`, scaled by sqrt(C / (C - 1)) and rotated at random into `dim` dimensions, so that
    dim = C - 1 suffices (the common form `sqrt(C/(C-1)) U (I - 1 1^T / C)` needs dim >= C).

    Args:
        classes: C, at least 2.
        dim: d, at least C - 1.
        seed: of the rotation alone, drawn from a generator of its own; equal seeds give equal frames.

    Returns:
        Tensor (C, d), float64, on the CPU.

    Raises:
        ValueError: dim < C - 1: no simplex ETF exists; the message gives the NC2 floor.
    """
    check_sizes(classes, dim)
    if dim < classes - 1:
        raise ValueError(
            f"`dim` must be at least {classes - 1} for a simplex ETF of {classes} classes; found {dim}, "
            f"where NC2 cannot fall below {nc2_floor(classes, dim):.5f}. Widen the features, or use a "
            "learned head."
        )
    drawn = torch.randn(dim, classes - 1, generator=generator_of(seed), dtype=torch.float64)
    axes, upper = torch.linalg.qr(drawn)
    # QR leaves the signs of its columns open; a positive diagonal makes the frame unique and Haar-distributed
    rotation = axes * upper.diagonal().sign()
    return math.sqrt(classes / (classes - 1)) * helmert(classes) @ rotation.T


def helmert(classes: int) -> Tensor:
    """Return an orthonormal basis of the hyperplane `1^T x = 0` as columns, (C, C - 1) float64 (Helmert)."""
    k = torch.arange(1, classes, dtype=torch.float64)
    basis = torch.ones(classes, classes - 1, dtype=torch.float64).triu_()
    basis[1:].diagonal().copy_(-k)
    return basis / torch.sqrt(k * (k + 1))


def check_sizes(classes: int, dim: int = 1) -> None:
    """Refuse fewer than two classes, and features without a dimension.

    Raises:
        ValueError: either.
    """
    if classes < 2:
        raise ValueError(f"`classes` must be at least 2; found {classes}. One class has no geometry.")
    if dim < 1:
        raise ValueError(f"`dim` must be at least 1; found {dim}. Pass features with columns.")
