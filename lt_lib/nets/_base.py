"""What every network shares: features, a head, and what follows from their sizes."""

from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice
from lt_lib.collapse.etf import nc2_floor
from lt_lib.nets.heads import HEAD_NAMES, HEAD_OPTIONS, CosineHead, ETFHead, LinearHead

Head = LinearHead | CosineHead | ETFHead
_HEADS: dict[str, type[Head]] = dict(zip(HEAD_NAMES, (LinearHead, CosineHead, ETFHead), strict=True))


class Classifier(nn.Module):
    """A network of images (B, channels, H, W) whose `head` reads its features (B, dim).

    A subclass builds its layers, puts `head` last, and computes features in `_features`.

    Attributes:
        channels: of the images.
        dim: d, number of features.
        classes: C.

    Raises:
        ValueError: a head of another number of features.
    """

    head: Head

    def __init__(self, head: Head, dim: int, channels: int) -> None:
        super().__init__()
        self.channels, self.dim = channels, dim
        self.classes, taken = head.weight_matrix().shape
        if taken != dim:
            raise ValueError(f"`head` must take the {dim} features of this network; found one for {taken}.")

    def features(self, x: Tensor) -> Tensor:
        """Return the features (B, d) that enter the head, of images (B, channels, H, W).

        Raises:
            ValueError: images of another shape or number of channels.
        """
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"Images must be (B, {self.channels}, H, W) for this network; found {tuple(x.shape)}. Build "
                "the network with `channels` of your data, or convert the images."
            )
        return self._features(x)

    def _features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) of images (B, channels, H, W)."""
        return self.head(self.features(x))

    @property
    def nc2_floor(self) -> float:
        """Least NC2 of this network's class means: above 0 when d < C - 1 (Theorem T1 (vi))."""
        return nc2_floor(self.classes, self.dim)


def make_head(name: str, dim: int, classes: int, options: dict[str, Any], generator: torch.Generator) -> Head:
    """Return a head; it draws from `generator`, or from `head_seed` where the options have one.

    Raises:
        ValueError: an unknown head, an option that it does not have, fewer than two classes, or an ETF with
            dim < C - 1.
    """
    check_choice(name, HEAD_NAMES, "head")
    for option in options:
        check_choice(option, (*HEAD_OPTIONS[name], "head_seed"), f"an option of the head `{name}`")
    if classes < 2:
        raise ValueError(f"`classes` must be at least 2; found {classes}. One class leaves nothing to learn.")
    seed = options.get("head_seed", generator)
    own = {option: value for option, value in options.items() if option != "head_seed"}
    return _HEADS[name](dim, classes, **own, seed=seed)


def check_channels(channels: int) -> None:
    """Refuse fewer than one channel.

    Raises:
        ValueError: `channels` is below 1.
    """
    if channels < 1:
        raise ValueError(f"`channels` must be at least 1; found {channels}.")
