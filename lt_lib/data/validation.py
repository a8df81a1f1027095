"""What images and labels must look like, refused in one sentence where they do not."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

RENUMBER = "Renumber them with `np.unique(labels, return_inverse=True)[1]`"


def pixels_from(images: Any, name: str) -> Tensor:
    """Return a copy of images (n, H, W[, 1 or 3]) as a tensor (n, ch, H, W), uint8 or float32.

    The values of floats are checked by `check_pixels`.

    Raises:
        ValueError: the array has another shape or type, or is empty.
    """
    array = np.asarray(images)
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4 and array.shape[-1] not in (1, 3) and array.shape[1] in (1, 3):
        raise ValueError(
            f"`{name}` must be (n, H, W) or (n, H, W, 3) with the channels last; found {array.shape}, "
            f"channels first. Pass `{name}.transpose(0, 2, 3, 1)`."
        )
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or 0 in array.shape:
        raise ValueError(
            f"`{name}` must be (n, H, W) or (n, H, W, 3) and not empty; found shape {np.shape(images)}. "
            "Reshape the array."
        )
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        wide = array.dtype.kind in "iu" and array.max() > 255
        way = "`(a // 257).astype(np.uint8)` if its values are 0..65535" if wide else "`.astype(np.uint8)`"
        raise ValueError(
            f"`{name}` must be uint8 in 0..255 or floats in 0..1; found {array.dtype}. Convert it with {way}"
            f"{'' if wide else ' if its values are 0..255'}."
        )
    if array.dtype != np.uint8:
        with np.errstate(over="ignore"):  # a double too large for float32 becomes infinite and is refused
            array = array.astype(np.float32)
    # a copy: the caller's array must neither change with ours nor need to be writable
    return torch.from_numpy(np.array(array.transpose(0, 3, 1, 2), order="C"))


def labels_from(labels: Any, name: str) -> Tensor:
    """Return labels (n,) of whole numbers as an int64 tensor; their range is checked by `check_classes`.

    Raises:
        ValueError: the labels are not one-dimensional whole numbers, or one is negative.
    """
    array = np.asarray(labels)
    if array.ndim == 1 and len(array) and array.dtype.kind in "USf":
        raise ValueError(f"`{name}` must be one-dimensional whole numbers; {_what_labels(array, name)}")
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0:
        raise ValueError(
            f"`{name}` must be one-dimensional whole numbers and not empty; found shape {array.shape} of "
            f"{array.dtype}. Pass one class number an image, such as `{name}.ravel().astype(np.int64)`."
        )
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        bad = array[(array < 0) | (array > np.iinfo(np.int32).max)]
        raise ValueError(
            f"`{name}` must be class numbers from 0; found {bad[0]} ({int((array == bad[0]).sum())} times). "
            f"{RENUMBER}, or drop these images."
        )
    return torch.from_numpy(array.astype(np.int64))


def _what_labels(array: Any, name: str) -> str:
    if array.dtype.kind in "US":
        found = f"found names such as `{array[0]}`. Pass `np.unique({name}, return_inverse=True)[1]`"
        return f"{found}, and the names as `class_names`, `np.unique({name})`."
    with np.errstate(invalid="ignore"):
        odd = array[~np.isfinite(array) | (array % 1 != 0)]
    if len(odd):
        return f"found {odd[0]:g}, which is not whole. Round or mend the labels, or drop these images."
    return f"found whole numbers stored as {array.dtype}. Pass `{name}.astype(np.int64)`."


def check_classes(labels: Tensor, classes: int, name: str, require_all: bool) -> None:
    """Refuse labels outside 0..classes-1 and, with `require_all`, a class without an image.

    Raises:
        ValueError: labels count from 1, leave the range, or have a gap; the class is named.
    """
    if len(labels) == 0:
        raise ValueError(f"`{name}` is empty; it must hold at least one image. Check how it was selected.")
    low, high = int(labels.min()), int(labels.max())
    if require_all and low == 1:
        raise ValueError(
            f"`{name}` must count from 0; found labels {low}..{high}, with class 0 absent. {RENUMBER}, or "
            "subtract 1."
        )
    if low < 0 or high >= classes:
        value = low if low < 0 else high
        times = int((labels == value).sum())
        raise ValueError(
            f"`{name}` must be 0..{classes - 1}, one for each of the {classes} classes; found {value} "
            f"({times} times). {RENUMBER}, or give every class a name."
        )
    empty = (torch.bincount(labels, minlength=classes) == 0).nonzero().flatten().tolist()
    if require_all and empty:
        raise ValueError(
            f"Class {empty[0]} has 0 images in `{name}` ({len(empty)} of {classes} classes are empty), but "
            f"each class needs at least 1. {RENUMBER} to close the gap, or drop the class's name."
        )


def check_pixels(images: Any, name: str) -> None:
    """Refuse float images with NaN, infinite or out-of-range pixels; bytes, also on disk, cannot be wrong.

    Raises:
        ValueError: a pixel is not finite, or lies outside 0..1.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        return
    low, high = (float(v) for v in torch.aminmax(images))
    if low >= 0 and high <= 1:  # false for NaN, which aminmax hands on
        return
    bad = ~torch.isfinite(images)
    if bool(bad.any()):
        affected = int(bad.flatten(1).any(1).sum())
        first = int(bad.flatten(1).any(1).nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite; found {int(bad.sum())} NaN or infinite pixels in {affected} images, "
            f"the first in image {first}. Mend or drop these images."
        )
    raise ValueError(
        f"`{name}` of floats must lie in 0..1; found {low:.6g}..{high:.6g}. Divide by the largest possible "
        "value (255 for bytes), or pass uint8."
    )
