"""From the bytes of an image file to pixels: which images are taken, and how they are converted."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

# what cameras, scanners and browsers write. Pillow knows more: for EPS it starts Ghostscript, and some of the
# rest have no mark of their own, so that any bytes may pass for them
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
GRAY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
# what Pillow's decoders raise on damaged bytes, besides OSError
DAMAGE = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, OverflowError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)
_ASPECT = 100  # longer side over shorter side, at most: resizing multiplies the longer one
MAX_PIXELS = 2**26  # of one image, 8192 x 8192: decoded it takes 200 MB, and several are decoded at a time
_ORIENTATION = 0x0112  # EXIF tag; 1 is upright


def why_damaged(error: BaseException | None, size: int) -> str:
    """Say in a few words why a file of `size` bytes cannot be decoded, without the folder that it is in."""
    if not size:
        return "it is empty, 0 bytes"
    if isinstance(error, UnidentifiedImageError):
        return "cannot identify image file"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"it has more than {MAX_PIXELS} pixels, 8192 x 8192: scale it down first"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path that the system adds
    return str(error).rstrip(".")


def opened(path: Path) -> Image.Image:
    """Open an image file by its content, whatever its suffix is, as one of `FORMATS`; decodes nothing.

    Raises:
        OSError: it is none of them, or cannot be read.
    """
    return Image.open(path, formats=FORMATS)


def is_turned(image: Image.Image) -> bool:
    """Tell whether the EXIF data of a decoded image ask viewers to turn or mirror it."""
    try:
        return image.getexif().get(_ORIENTATION, 1) not in (0, 1)
    except DAMAGE:
        return False  # damaged EXIF data: the pixels are whole


def is_gray(path: Path) -> bool:
    """Tell from the header whether a file holds grey levels only; a palette counts as colour.

    Raises:
        ValueError: the file is no image; it is named.
    """
    try:
        with opened(path) as image:
            return image.mode in GRAY_MODES
    except DAMAGE as error:
        raise ValueError(
            f"`{path}` must be an image file; found one that cannot be opened ({why_damaged(error, 1)}). "
            "Fetch the file again, or leave it out."
        ) from error


def converted(image: Image.Image, channels: int) -> Image.Image:
    """Return an image as RGB, or as L where `channels` is 1: decodes it.

    Raises:
        ValueError: its levels have no known range, or are bytes in a wide type.
    """
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError(f"its grey levels {levels.min()}..{levels.max()} leave 16 bits")
        if 0 < levels.max() < 256:
            raise ValueError(
                f"its grey levels reach {levels.max()} of 65535, so they are bytes in a wide type, which "
                "would come out black: save it with 8 bits"
            )
        image = Image.fromarray(((levels.astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a known range")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns on the direct way
    return image.convert("L" if channels == 1 else "RGB")


def check_sides(size: tuple[int, int]) -> None:
    """Refuse an image by the (width, height) of its header.

    Raises:
        ValueError: it is longer than 100 times its breadth, or has more than 2^26 pixels.
    """
    if max(size) > _ASPECT * min(size):
        raise ValueError(f"its sides {size[0]} x {size[1]} are beyond {_ASPECT} to 1: crop it first")
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(
            f"its {size[0]} x {size[1]} pixels are more than {MAX_PIXELS}, 8192 x 8192: scale it down first"
        )


def cropped(image: Image.Image, shorter: int, size: int) -> Image.Image:
    """Return an image with its shorter side resized to `shorter` and its centre `size` x `size` cropped."""
    width, height = image.size
    short = min(width, height)
    if short != shorter:
        width, height = (
            shorter if side == short else int(shorter * side / short) for side in (width, height)
        )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
