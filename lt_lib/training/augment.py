"""Augmentation in tensor form: one gather a batch, drawn for a whole epoch at once, no worker processes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lt_lib._checks import check_choice
from lt_lib.training.resized import Crops, draw_crops, resized_crops

# Pixels of black border: one for 8 x 8 digits, where two would cut strokes; four is the CIFAR recipe
# of He et al. (2016), section 4.2.
PADDING = {"none": 0, "shift": 1, "crop_flip": 4, "resized_crop": 0}
MIRRORLESS = ("none", "shift", "resized_crop")  # for images that mean something else in a mirror


@dataclass(frozen=True)
class Draw:
    """Random choices of one epoch, one a training image: a window in the padded image, and a mirror."""

    rows: Tensor  # (n,) int64, 0..2 * padding: top row of the window
    columns: Tensor  # (n,) int64, likewise: left column
    flip: Tensor  # (n,) bool

    def to(self, device: torch.device) -> "Draw":
        """Return the draw on `device`."""
        return Draw(self.rows.to(device), self.columns.to(device), self.flip.to(device))


def draw(images: int, augment: str, generator: torch.Generator) -> Draw | Crops:
    """Draw the choices for `images` images; "none" is the centre window, unmirrored.

    Raises:
        ValueError: `augment` is unknown.
    """
    check_choice(augment, PADDING, "augment")
    if augment == "resized_crop":
        return draw_crops(images, generator)
    windows = 2 * PADDING[augment] + 1
    offsets = torch.randint(windows, (2, images), generator=generator)
    mirrored = torch.zeros(images, dtype=torch.bool)
    if augment == "crop_flip":
        mirrored = torch.randint(2, (images,), generator=generator).bool()
    return Draw(offsets[0], offsets[1], mirrored)


def pad(images: Tensor, augment: str) -> Tensor:
    """Return `images` (n, ch, H, W) with the black border that `augment` needs, in the same dtype."""
    border = PADDING[augment]
    if border == 0:
        return images
    n, channels, height, width = images.shape
    padded = images.new_zeros(n, channels, height + 2 * border, width + 2 * border)
    padded[:, :, border : border + height, border : border + width] = images
    return padded


def take(
    padded: Tensor, index: Tensor, choices: Draw | Crops, augment: str, keys: Tensor | None = None
) -> Tensor:
    """Return the augmented images `index` (B,) of `padded` as (B, ch, H, W), in the same dtype.

    `choices` holds one entry an image of `padded`, or is looked up by `keys` (B,) instead. Every pixel is a
    pixel of the padded image, and nothing is interpolated; for "resized_crop" all is, in float32.
    """
    keys = index if keys is None else keys
    if isinstance(choices, Crops):
        return resized_crops(padded[index], choices.take(keys))
    border = PADDING[augment]
    if border == 0:
        return padded[index]
    height, width = padded.shape[2] - 2 * border, padded.shape[3] - 2 * border
    across = torch.arange(width, device=padded.device)
    across = torch.where(choices.flip[keys, None], across.flip(0), across)  # (B, W)
    rows = choices.rows[keys, None] + torch.arange(height, device=padded.device)  # (B, H)
    columns = choices.columns[keys, None] + across
    channels = torch.arange(padded.shape[1], device=padded.device)
    return padded[
        index[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]
    ]
