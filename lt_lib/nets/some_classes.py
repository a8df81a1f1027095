"""A network restricted to some of its classes, for images that do not show all of them."""

from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import as_tensor


class SomeClasses(nn.Module):
    """The logits of some classes of a network. Weights and buffers are the network's own, not copies.

    Surgery and a bias fit need calibration images of every class that they weigh. Where a class is too rare
    to have any, they are given this view of the network: the logits of such classes are left out of the
    softmax, so nothing is measured of them, and nothing protects them when the weights are moved.

    Attributes:
        model: the network.
        classes: (C',) int64, rising: the network's numbers of the kept classes.

    Args:
        model: images -> logits (n, C).
        labels: of the images at hand, (n,); the classes among them are kept.

    Raises:
        ValueError: fewer than two classes.
    """

    classes: Tensor

    def __init__(self, model: nn.Module, labels: Any) -> None:
        super().__init__()
        kept = as_tensor(labels, "labels").long().unique()
        if len(kept) < 2:
            raise ValueError(
                f"`labels` must be of two classes or more, to tell them apart; found {kept.tolist()}. Set "
                "images of more classes aside."
            )
        self.model = model
        self.register_buffer("classes", kept, persistent=False)
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        """Return the kept classes' logits (n, C')."""
        logits: Tensor = self.model(images)
        return logits[:, self.classes]

    def pick(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images (n', ...) of the kept classes, and their labels as the view numbers them."""
        kept = self.classes.to(labels.device)
        shown = torch.isin(labels, kept)
        return images[shown.to(images.device)], torch.searchsorted(kept, labels[shown])
