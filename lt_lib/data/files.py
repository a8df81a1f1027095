"""Images that stay on disk: decoded, resized and cropped when they are asked for."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lt_lib.data.content import content_digests
from lt_lib.data.decoding import DAMAGE, check_sides, converted, cropped, is_turned, opened, why_damaged
from lt_lib.data.names import readable

BLOCK = 64  # files a task


class ImageFiles:
    """Image files under one folder, in place of a tensor (n, ch, S, S) of bytes.

    An image is decoded to `channels` channels, its shorter side resized to `shorter` (bilinear, with
    antialiasing) and its centre S x S cropped, as torchvision's `Resize` and `CenterCrop` do. Of several
    frames the first counts; transparency is dropped, not blended; 16-bit grey levels are scaled to bytes,
    round(v / 257), and an image with levels that all lie below 256 is refused, since it holds bytes in a wide
    type and would come out black; CMYK, palette and other colours become RGB. The rotation that EXIF data ask
    for, as phones write it, is not applied, as in torchvision (Pillow itself turns TIFF): `inspect` counts
    such images. A file is what its content is, whatever its suffix: one of `lt_lib.data.decoding.FORMATS`.
    An image whose sides are beyond 100 to 1, or of more than 2^26 pixels (8192 x 8192), is refused by its
    header, before it is decoded. Files are looked up at once, and opened when they are asked for.

    Args:
        root: the folder.
        names: (n,) paths relative to it; they must not leave it (links are followed).
        size: height and width S of the images that come out.
        channels: 3 (RGB) or 1 (grey).
        shorter: length of the shorter side before the crop, at least `size`; None is `size`.

    Raises:
        FileNotFoundError: a file is absent, or a folder or device; the first one is named.
        ValueError: a path leaves the folder, or a number is out of range.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self, root: str | Path, names: Sequence[str], size: int, channels: int = 3, shorter: int | None = None
    ) -> None:
        self.root = Path(root)
        self.names = tuple(names)
        self.size, self.channels = _whole(size, "size", 1), channels
        self.shorter = self.size if shorter is None else _whole(shorter, "shorter", self.size)
        if channels not in (1, 3):
            raise ValueError(f"`channels` must be 1 (grey) or 3 (RGB); found {channels!r}. Pass one of them.")
        self.sizes = _sizes(self.root, self.names)  # (n,) bytes of each file
        self._digests: NDArray[np.uint8] | None = None  # (n, 16), see `content_digests`

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return (
            f"ImageFiles({len(self)} files in '{self.root}' as {self.channels} x {self.size} x {self.size})"
        )

    @property
    def shape(self) -> torch.Size:
        """Shape (n, ch, S, S) of all images together."""
        return torch.Size((len(self), self.channels, self.size, self.size))

    @property
    def nbytes(self) -> int:
        """Bytes that all images take when they are decoded."""
        return self.shape.numel()

    def __getitem__(self, where: Any) -> Tensor:
        """Decode images: (m, ch, S, S) uint8 for positions (m,) or a slice, (ch, S, S) for one number."""
        positions = np.arange(len(self))[where.cpu().numpy() if isinstance(where, Tensor) else where]
        if positions.ndim == 0:
            return self._decode(int(positions))
        images = torch.empty((len(positions), *self.shape[1:]), dtype=torch.uint8)
        for i, position in enumerate(positions.tolist()):
            images[i] = self._decode(position)
        return images

    def is_floating_point(self) -> bool:
        """Return False: the images come as bytes."""
        return False

    def open(self, position: int) -> Image.Image:
        """Return one whole image as RGB, or as L where `channels` is 1: for crops of one's own.

        Raises:
            ValueError: the file is truncated, corrupt or no image; it is named.
        """
        return self._read(position)[0]

    def look(self, position: int) -> tuple[Tensor, str, tuple[int, int], bool]:
        """Return one image (ch, S, S) as it comes out; the mode and the (width, height) of its file, turned?

        The last says whether viewers show it turned or mirrored, since its EXIF data ask for it.

        Raises:
            ValueError: the file is truncated, corrupt or no image; it is named.
        """
        image, mode, sides, turned = self._read(position)
        return self._pixels(image), mode, sides, turned

    def _read(self, position: int) -> tuple[Image.Image, str, tuple[int, int], bool]:
        name = self.names[position]
        try:
            with opened(self.root / name) as image:
                check_sides(image.size)
                return converted(image, self.channels), image.mode, image.size, is_turned(image)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"`{name}` must lie in `{self.root}`; it was there before and is gone. Put it back."
            ) from error
        except DAMAGE as error:
            reason = why_damaged(error, int(self.sizes[position]))
            raise ValueError(
                f"`{readable(name)}` in `{self.root}` must be a whole image file; found one that "
                f"cannot be decoded ({reason}). Fetch the file again, or leave it out."
            ) from error

    def take(self, positions: Any) -> "ImageFiles":
        """Return the images at `positions` (m,), still on disk."""
        where = np.arange(len(self))[np.asarray(positions, dtype=np.int64)]
        taken = object.__new__(ImageFiles)
        taken.__dict__.update(self.__dict__)  # not looked up again
        taken.names = tuple(self.names[i] for i in where.tolist())
        taken.sizes = self.sizes[where]
        taken._digests = None if self._digests is None else self._digests[where]
        return taken

    def split(self, batch: int) -> Iterator[Tensor]:
        """Decode block after block of `batch` images, in order, as `Tensor.split` would give them."""
        return (self[start : start + batch] for start in range(0, len(self), batch))

    def decode(self) -> Tensor:
        """Decode all images into one tensor (n, ch, S, S), several at a time."""
        images = torch.empty(tuple(self.shape), dtype=torch.uint8)

        def fill(i: int) -> None:
            images[i] = self._decode(i)

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # decoders let go of Python's lock
            list(pool.map(fill, range(len(self))))
        return images

    def damaged(self, into: Tensor | None = None) -> dict[int, str]:
        """Decode every image and return why some cannot be, by position; `into` (n, ch, S, S) keeps the rest.

        Raises:
            FileNotFoundError: a file is gone.
        """

        def check(start: int) -> dict[int, str]:
            found = {}
            for i in range(start, min(start + BLOCK, len(self))):
                try:
                    image = self._decode(i)
                except ValueError as error:
                    found[i] = str(error)
                    continue
                if into is not None:
                    into[i] = image
            return found

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return {
                i: why for found in pool.map(check, range(0, len(self), BLOCK)) for i, why in found.items()
            }

    def fingerprint(self) -> str:
        """Hex SHA-256 of relative paths, sizes in bytes, the way of decoding and a sample of each content.

        See `lt_lib.data.content.content_digests`. The files are read once for each object: about 8 KiB a
        file, about 100 s on two slow cores for 10^6 files whose folder the system has cached.
        """
        if self._digests is None:
            self._digests = content_digests(self.root, self.names, self.sizes)
        how = f"files {tuple(self.shape)} {self.shorter};".encode()
        digest = hashlib.sha256(how)
        digest.update("\0".join(self.names).encode(errors="surrogateescape"))
        digest.update(self.sizes.tobytes())
        digest.update(self._digests.tobytes())
        return digest.hexdigest()

    def _decode(self, position: int) -> Tensor:
        return self._pixels(self.open(position))

    def _pixels(self, image: Image.Image) -> Tensor:
        cut = cropped(image, self.shorter, self.size)
        pixels = np.array(cut).reshape(self.size, self.size, self.channels)
        return torch.from_numpy(pixels).permute(2, 0, 1)


def check_inside(name: str, where: str) -> None:
    """Refuse a path that is empty, absolute, begins with a drive letter or climbs out of its folder.

    Raises:
        ValueError: it does; `where` says where the path was found.
    """
    parts = name.replace("\\", "/").split("/")
    if not name or parts[0] == "" or ".." in parts or re.match("[A-Za-z]:", name) or "\0" in name:
        raise ValueError(
            f"{where} must name a file by its path within the image folder, without `..` and without a "
            f"drive such as `C:`; found `{name}`. Write it relative to that folder, or rename the file."
        )


def _sizes(root: Path, names: Sequence[str]) -> NDArray[np.int64]:
    sizes = np.empty(len(names), dtype=np.int64)
    absent = []
    for i, name in enumerate(names):
        check_inside(name, "`names`")
        try:
            found = (root / name).stat()
        except OSError:
            absent.append(name)
            continue
        sizes[i] = found.st_size
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
            absent.append(name)
    if absent:
        raise FileNotFoundError(
            f"`{root}` must hold the image `{readable(absent[0])}`; it is absent ({len(absent)} of "
            f"{len(names)} are). Unpack the missing images there, or pass the folder that holds them as "
            "`root`."
        )
    return sizes


def _whole(value: Any, name: str, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not minimum <= value <= 8192:
        raise ValueError(
            f"`{name}` must be a whole number of pixels in {minimum}..8192; found {value!r}. Pass 64, say."
        )
    return int(value)
