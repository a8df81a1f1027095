"""Pairs of single images side by side: C^2 classes from C, so that many-class chapters run on a laptop."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lt_lib.data.source import Part, Source


@dataclass(frozen=True)
class PairSource:
    """A source whose images are composed when it is split, so that no single image serves two parts.

    Class `C * left + right` shows a `left` beside a `right`. Within a part, each pair class zips two random
    orders of the part's singles: min(n_left, n_right) images, at most `limit`; no image is paired with
    itself. `Part.index` of a composed part is left * n + right, positions among the `n` singles.
    """

    name: str
    singles: Source
    limit: int  # most images that a pair class holds in a part
    note: str

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the C^2 classes, "left|right"."""
        names = self.singles.class_names
        return tuple(f"{left}|{right}" for left in names for right in names)

    @property
    def classes(self) -> int:
        """Number of pair classes."""
        return self.singles.classes**2

    @property
    def counts(self) -> Tensor:
        """Images a pair class, int64 (C^2,), if all training singles went into one part."""
        single = self.singles.counts
        return torch.minimum(single[:, None], single[None, :]).clamp(max=self.limit).flatten()

    def singles_of(self, part: Part, kind: str = "train") -> tuple[Tensor, Tensor]:
        """Positions (n,) of the left and right singles of a composed part, among the `kind` singles."""
        single = self.singles.test if kind == "test" and self.singles.test is not None else self.singles.train
        return part.index // len(single), part.index % len(single)


def compose_pairs(
    singles: Part, classes: int, total: int, limit: int, generator: np.random.Generator
) -> Part:
    """Compose one part of `classes`^2 pair classes from its own singles (see `PairSource`).

    Args:
        singles: single images, labels 0..classes-1.
        classes: number of single classes C.
        total: singles in the source, the base of the composed `index`.
        limit: most images a pair class.
        generator: the draws' own generator.

    Returns:
        Part with images (m, ch, H, 2 W), in the order of the classes.

    Raises:
        ValueError: a class has fewer than 2 singles, so that it cannot stand beside itself.
    """
    labels = singles.labels.numpy()
    members = [np.flatnonzero(labels == c) for c in range(classes)]
    small = next((c for c, m in enumerate(members) if len(m) < 2), None)
    if small is not None:
        raise ValueError(
            f"Class {small} has {len(members[small])} single images in a part, but pairs need at least 2 so "
            "that no image stands beside itself. Set aside more images a class, or leave the pairs out."
        )
    drawn = [
        _zip_class(members[a], members[b], limit, generator) for a in range(classes) for b in range(classes)
    ]
    left, right = (torch.from_numpy(np.concatenate(side)) for side in zip(*drawn, strict=True))
    images = singles.in_memory()
    return Part(
        torch.cat([images.index_select(0, side) for side in (left, right)], dim=3),
        singles.labels[left] * classes + singles.labels[right],
        singles.index[left] * total + singles.index[right],
    )


def _zip_class(
    left: NDArray[np.int64], right: NDArray[np.int64], limit: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    a = generator.permutation(left)
    # one class beside itself: a rotation of one order never meets the same image
    b = np.roll(a, 1) if left is right else generator.permutation(right)
    n = min(len(a), len(b), limit)
    return a[:n], b[:n]
