"""One pass over images, in blocks: what each of them is, without keeping its pixels."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lt_lib.data.decoding import why_damaged
from lt_lib.data.files import BLOCK, ImageFiles

Images = Tensor | ImageFiles


@dataclass(frozen=True, slots=True)
class Seen:
    """What one image is."""

    digest: bytes  # 16 bytes of its pixels as they come out; empty where there are none
    mode: str  # of the file, such as "RGB" or "P"; of a tensor its type
    sides: tuple[int, int]  # width and height of the file, or of the tensor
    constant: bool  # every pixel has one colour
    fault: str = ""  # why no pixels come out
    turned: bool = False  # viewers show it turned, by its EXIF data


def scan(images: Images, progress: Callable[[int], None] | None = None) -> list[Seen]:
    """Look at each image once; of files, several at a time, and damaged ones are told, not refused.

    Args:
        images: (n, ch, H, W), or files.
        progress: called with the number of images seen so far, now and then.

    Raises:
        FileNotFoundError: a file is gone.
    """
    seen: list[Seen] = []
    for block in _blocks(images):
        seen += block
        if progress is not None:
            progress(len(seen))
    return seen


def pixel_digests(images: Images) -> NDArray[np.void]:
    """Return 16 bytes of BLAKE2 for the pixels of each image, (n,): equal for equal pictures of equal size.

    Raises:
        ValueError: a file is no whole image; it is named.
    """
    found = scan(images)
    bad = next((i for i, one in enumerate(found) if one.fault), None)
    if bad is not None and isinstance(images, ImageFiles):
        images[bad]  # refuses it in a sentence
    return np.array([one.digest for one in found], dtype="V16")


def _blocks(images: Images) -> Iterator[list[Seen]]:
    def look(start: int) -> list[Seen]:
        return [_look(images, i) for i in range(start, min(start + BLOCK, len(images)))]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # decoders let go of Python's lock
        yield from pool.map(look, range(0, len(images), BLOCK))


def _look(images: Images, i: int) -> Seen:
    turned = False
    if isinstance(images, ImageFiles):
        try:
            pixels, mode, sides, turned = images.look(i)
        except ValueError as error:
            return Seen(b"", "", (0, 0), False, why_damaged(error.__cause__, int(images.sizes[i])))
    else:
        pixels = images[i]
        mode, sides = str(pixels.dtype).removeprefix("torch."), (pixels.shape[2], pixels.shape[1])
    values = np.ascontiguousarray(pixels.numpy())
    flat = values.reshape(len(values), -1)
    constant = bool((flat == flat[:, :1]).all())
    return Seen(hashlib.blake2b(values.data, digest_size=16).digest(), mode, sides, constant, turned=turned)
