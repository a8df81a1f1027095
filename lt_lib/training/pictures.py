"""Augmentation of one picture at a time by torchvision, for images in memory and from files.

Every function draws from PyTorch's global CPU generator, as torchvision's transforms do; `rendered` seeds it
for each picture and gives it back, so that a picture's choices depend on its own seed alone. Pictures are
8-bit; grey ones stay grey (mode L), where the operations on colour (saturation, hue, greying) change nothing.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import ImageEnhance
from PIL.Image import Image, Resampling, Transpose, fromarray
from torch import Tensor

PICTURES = ("autoaugment", "randaugment", "simclr", "imagenet")  # names of `TrainConfig.augment`


def rendered(pictures: Sequence[Image], seeds: Sequence[int], name: str, size: int, whole: bool) -> Tensor:
    """Return the augmented pictures (B, ch, size, size), uint8.

    - autoaugment: random crop of the picture in a black border of size / 8 (4 pixels at 32), mirrored half
      the time; AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019, arXiv 1805.09501), as torchvision has
      it, which fills with black; then one black square of size / 2 (16 pixels at 32), centred anywhere, cut
      at the edges (Cutout, DeVries and Taylor 2017, arXiv 1708.04552). Black is that of pixels before
      normalisation; Cutout's own code blanks to the mean.
    - randaugment: crop and mirror, then RandAugment with 2 operations at magnitude 10 of 30 (Cubuk et al.
      2020, arXiv 1909.13719). The crop is that of autoaugment, or of imagenet if `whole`.
    - simclr: a crop of 0.2 to 1 of the area, resized; mirrored half the time; with probability 0.8
      brightness, contrast, saturation and hue by up to 0.4, 0.4, 0.4 and 0.1 in random order; grey with
      probability 0.2 (Chen et al. 2020, arXiv 2002.05709, without blur; the second and third view of the
      code released with arXiv 2605.10047).
    - imagenet: a crop of 0.08 to 1 of the area, sides 3:4 to 4:3, resized; mirrored half the time.

    Args:
        pictures: B pictures, of mode L or RGB.
        seeds: B seeds, one a picture.
        name: one of `PICTURES`.
        size: height and width that come out; pictures that are not `whole` have it already.
        whole: whether the pictures are whole files, of any size.
    """
    change = _CHANGES[name]
    with torch.random.fork_rng(devices=[]):
        done = []
        for picture, seed in zip(pictures, seeds, strict=True):
            torch.random.default_generator.manual_seed(seed)
            done.append(as_pixels(change(picture, size, whole)))
    return torch.stack(done)


def as_picture(pixels: Tensor) -> Image:
    """Return pixels (ch, H, W), uint8 or float32 in 0..1 (rounded to 8 bits), as a picture.

    Raises:
        ValueError: neither one nor three channels.
    """
    if pixels.shape[0] not in (1, 3):
        raise ValueError(
            f"Augmentation by `{'`, `'.join(PICTURES)}` needs grey or RGB images; found {pixels.shape[0]} "
            "channels. Use `crop_flip`, `shift` or `none`."
        )
    if pixels.is_floating_point():
        pixels = (255 * pixels).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    return fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def as_pixels(picture: Image) -> Tensor:
    """Return a picture of mode L or RGB as (ch, H, W), uint8."""
    array = np.array(picture)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


@lru_cache(maxsize=1)
def _transforms() -> Any:
    from torchvision.transforms import v2  # takes a second to import, and most trainings do without

    return v2


def _mirrored(picture: Image) -> Image:
    return picture.transpose(Transpose.FLIP_LEFT_RIGHT) if _happens(0.5) else picture


def _happens(probability: float) -> bool:
    return float(torch.rand(())) < probability


def _below(limit: int) -> int:
    return int(torch.randint(limit, ()))


def _shifted(picture: Image, size: int) -> Image:
    border = max(1, round(size / 8))
    left, top = (_below(2 * border + 1) - border for _ in range(2))
    # outside of the picture a crop is black
    return picture.crop((left, top, left + picture.width, top + picture.height))


def _resized_crop(picture: Image, size: int, least: float) -> Image:
    """Crop `least` to 1 of the area, sides 3:4 to 4:3 and log-uniform; as torchvision's RandomResizedCrop."""
    width, height = picture.size
    for share, shape, left, top in torch.rand(10, 4).tolist():
        area = width * height * (least + (1 - least) * share)
        ratio = (3 / 4) * (16 / 9) ** shape
        wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < wide <= width and 0 < high <= height:
            x, y = int(left * (width - wide + 1)), int(top * (height - high + 1))
            return picture.crop((x, y, x + wide, y + high)).resize((size, size), Resampling.BILINEAR)
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    x, y = (width - wide) // 2, (height - high) // 2
    return picture.crop((x, y, x + wide, y + high)).resize((size, size), Resampling.BILINEAR)


def _imagenet(picture: Image, size: int, whole: bool) -> Image:
    return _mirrored(_resized_crop(picture, size, 0.08))


def _autoaugment(picture: Image, size: int, whole: bool) -> Image:
    return _cutout(_policy()(_mirrored(_shifted(picture, size))), size // 2)


def _randaugment(picture: Image, size: int, whole: bool) -> Image:
    cropped = _imagenet(picture, size, whole) if whole else _mirrored(_shifted(picture, size))
    changed: Image = _two_operations()(cropped)
    return changed


@lru_cache(maxsize=1)
def _policy() -> Any:
    return _transforms().AutoAugment(_transforms().AutoAugmentPolicy.CIFAR10)


@lru_cache(maxsize=1)
def _two_operations() -> Any:
    return _transforms().RandAugment(num_ops=2, magnitude=10)


def _cutout(picture: Image, side: int) -> Image:
    left, top = (_below(length) - side // 2 for length in picture.size)
    right, bottom = min(left + side, picture.width), min(top + side, picture.height)
    hole = (max(left, 0), max(top, 0), right, bottom)
    if hole[0] < right and hole[1] < bottom:
        picture.paste(0 if picture.mode == "L" else (0, 0, 0), hole)
    return picture


def _simclr(picture: Image, size: int, whole: bool) -> Image:
    picture = _mirrored(_resized_crop(picture, size, 0.2))
    if _happens(0.8):
        picture = _jittered(picture)
    if _happens(0.2) and picture.mode == "RGB":
        picture = picture.convert("L").convert("RGB")
    return picture


def _jittered(picture: Image) -> Image:
    colour = picture.mode == "RGB"
    amounts = torch.empty(4).uniform_(-1, 1).tolist()
    for number in torch.randperm(4).tolist():
        if number < 3 and (colour or number < 2):
            picture = _ENHANCERS[number](picture).enhance(1 + 0.4 * amounts[number])
        elif colour:
            picture = _transforms().functional.adjust_hue(picture, 0.1 * amounts[3])
    return picture


# what torchvision calls for brightness, contrast and saturation
_ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)

_CHANGES: dict[str, Callable[[Image, int, bool], Image]] = dict(
    zip(PICTURES, (_autoaugment, _randaugment, _simclr, _imagenet), strict=True)
)
