"""Crops that are resized, with brightness and contrast changed: views to contrast, in tensor form."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

AREA = (0.2, 1.0)  # share of the image that a crop shows, as in SimCLR's views
RATIO = (3 / 4, 4 / 3)  # width to height
JITTER, JITTERED = 0.4, 0.8  # largest change of brightness and contrast, and how often there is one


@dataclass(frozen=True)
class Crops:
    """Random choices of one epoch, one a training image; lengths in sides of the image."""

    sides: Tensor  # (n, 2) width and height of the crop, in (0, 1]
    centres: Tensor  # (n, 2) of the crop, in 0..1
    brightness: Tensor  # (n,) factor
    contrast: Tensor  # (n,) factor

    def to(self, device: torch.device) -> "Crops":
        """Return the choices on `device`."""
        return Crops(*(value.to(device) for value in vars(self).values()))

    def take(self, keys: Tensor) -> "Crops":
        """Return the choices of the images `keys` (B,)."""
        return Crops(*(value[keys] for value in vars(self).values()))


def draw_crops(images: int, generator: torch.Generator) -> Crops:
    """Draw the choices for `images` images.

    Area and ratio of sides are drawn as in torchvision's `RandomResizedCrop`, the ratio on a logarithmic
    scale; a side that would be longer than the image is cut to it, where torchvision draws again.
    """
    area, ratio, left, top, often, bright, contrast = torch.rand(7, images, generator=generator)
    area = AREA[0] + (AREA[1] - AREA[0]) * area
    ratio = torch.exp(math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * ratio)
    sides = torch.stack(((area * ratio).sqrt(), (area / ratio).sqrt()), 1).clamp(max=1)
    centres = sides / 2 + (1 - sides) * torch.stack((left, top), 1)
    jittered = often < JITTERED
    factors = [torch.where(jittered, 1 + JITTER * (2 * u - 1), 1.0) for u in (bright, contrast)]
    return Crops(sides, centres, *factors)


def resized_crops(images: Tensor, crops: Crops) -> Tensor:
    """Return the crops, resized to the images (B, ch, H, W), in float32 and the images' own units.

    Sampling is bilinear. Brightness is a factor, contrast a factor on the difference from the image's mean;
    both stop at black and white (0 and 255, or 0 and 1 for floating-point images).
    """
    white = 1.0 if images.is_floating_point() else 255.0
    scale = torch.diag_embed(crops.sides)  # (B, 2, 2), x before y
    theta = torch.cat((scale, (2 * crops.centres - 1).unsqueeze(2)), 2)
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    pixels = grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    pixels = (pixels * crops.brightness.view(-1, 1, 1, 1)).clamp_(0, white)
    mean = pixels.mean((1, 2, 3), keepdim=True)
    return torch.lerp(mean, pixels, crops.contrast.view(-1, 1, 1, 1)).clamp_(0, white)
