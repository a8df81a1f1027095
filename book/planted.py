"""A small folder of images as people have them: written from digits, uneven, every common fault in it."""

import shutil
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lt_lib.data import load

# classes by digit, with the images of each: ten names in six scripts, imbalance 160
CLASSES = {
    "zéro": 160,
    "один": 110,
    "二": 75,
    "three": 50,
    "أربعة": 34,
    "πέντε": 24,
    "छह": 16,
    "class 7": 11,
    "class 10": 5,
    "nine": 1,
}
SIDE = 16  # height and width of most images
_KINDS = ("L", "L", "L", "RGB", "L", "RGBA", "L", "P", "I;16", "CMYK", "L", "JPEG")


@dataclass(frozen=True)
class Planted:
    """What was written, to compare with what is found; names are paths within the folder."""

    folder: Path
    counts: dict[str, int]  # images that can be decoded, by class
    unreadable: tuple[str, ...]  # truncated, no image, empty, 30,000 x 30,000
    copies: tuple[tuple[str, ...], ...]  # equal images of one class
    conflicting: tuple[tuple[str, ...], ...]  # equal images of two classes
    constant: tuple[str, ...]  # of one colour
    single: str  # a class of one image
    ignored: tuple[str, ...]  # files that are no images by their names


def planted_folder(path: str | Path, seed: int = 0) -> Planted:
    """Write the folder anew and return what was planted in it.

    Which digits are drawn follows `seed`; names, numbers and faults do not. A folder that was written before
    is replaced; one that holds anything else is not touched.

    Raises:
        FileExistsError: there is another folder at `path`.
    """
    folder = Path(path)
    if folder.exists():
        if not (folder / ".planted").is_file():
            raise FileExistsError(f"`{folder}` must not exist yet; found another folder. Pass a new path.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / ".planted").write_text("This folder is written anew by book/planted.py.\n", encoding="utf-8")
    _write_digits(folder, seed)
    unreadable = _damage(folder)
    copies = (
        _copy(folder, "zéro/0.png", "zéro/copy of 0.png"),
        _copy(folder, "один/2.png", "один/копия.png"),
    )
    conflicting = (_copy(folder, "three/4.png", "πέντε/τρία.png"),)
    Image.new("L", (SIDE, SIDE), 90).save(folder / "छह" / "खाली.png")
    (folder / "three" / "notes.txt").write_text("no image\n", encoding="utf-8")
    (folder / ".DS_Store").write_bytes(b"\0")
    extra = {"zéro": 1, "один": 1, "πέντε": 1, "छह": 1}
    return Planted(
        folder,
        {name: count + extra.get(name, 0) for name, count in CLASSES.items()},
        unreadable,
        copies,
        conflicting,
        ("छह/खाली.png",),
        "nine",
        ("three/notes.txt",),
    )


def _write_digits(folder: Path, seed: int) -> None:
    digits = load("digits").train
    rng = np.random.default_rng(seed)
    for digit, (name, count) in enumerate(CLASSES.items()):
        (folder / name).mkdir()
        drawn = rng.permutation(np.flatnonzero(digits.labels.numpy() == digit))[:count]
        for i, position in enumerate(drawn.tolist()):
            _save(digits.images[position][0].numpy(), folder / name, i)


def _save(levels: NDArray[np.uint8], folder: Path, i: int) -> None:
    """One digit, in one of several modes and sizes; a wider one has margins that the centre crop cuts."""
    scale = (2, 3, 2, 2)[i % 4]
    grey = levels.repeat(scale, 0).repeat(scale, 1)
    if i % 5 == 4:
        grey = np.pad(grey, ((0, 0), (4, 4)))
    kind = _KINDS[i % len(_KINDS)]
    if kind == "I;16":
        Image.fromarray(grey.astype(np.uint16) * 257).save(folder / f"{i}.png")
        return
    image = Image.fromarray(grey)
    if kind == "JPEG":
        image.save(folder / f"{i}.jpg", quality=95)
    else:
        image.convert(kind).save(folder / f"{i}.{'tif' if kind == 'CMYK' else 'png'}")


def _damage(folder: Path) -> tuple[str, ...]:
    """Write files that cannot be decoded: half of one, none, an empty one, and one of a huge size."""
    whole = (folder / "один" / "0.png").read_bytes()
    header = struct.pack(">II", 30_000, 30_000) + whole[24:29]
    huge = whole[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + whole[33:]
    contents = {
        "zéro/huge.png": huge,
        "один/half.png": whole[: len(whole) // 2],
        "二/空.png": b"",
        "three/page.jpg": b"<html>404 Not Found</html>",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return tuple(contents)


def _copy(folder: Path, name: str, other: str) -> tuple[str, str]:
    shutil.copyfile(folder / name, folder / other)
    return name, other
