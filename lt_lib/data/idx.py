"""Fashion-MNIST from IDX files, gzipped or not: torchvision's folder, a plain one, or Debian's."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lt_lib.data.source import Source, source_from_arrays

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_LAYOUTS = ("", "FashionMNIST/raw", "fashion-mnist", "raw")
_UNSIGNED_BYTE = 0x08


def load_fashion_mnist(root: str | Path | None = None, download: bool = False) -> Source:
    """Load Fashion-MNIST (arXiv 1708.07747): 60,000 + 10,000 garments, 28 x 28, ten balanced classes.

    Args:
        root: a folder with the four IDX files (raw or .gz), or the root that torchvision was given. None
            looks into the folder named by the environment variable LT_DATA, then into Debian's folder.
        download: let torchvision fetch the files into `root` when they are not there. Never by default.

    Raises:
        FileNotFoundError: the files are not there; says where it looked and how to get them.
        ValueError: a file is truncated or corrupt, or the files do not fit each other.
    """
    folder = fashion_folder(root, download)
    arrays = {
        part: read_idx(_existing(folder, stem), 3 if "images" in part else 1) for part, stem in _FILES.items()
    }
    return source_from_arrays(
        "fashion_mnist",
        **arrays,
        class_names=FASHION_CLASSES,
        note="Fashion-MNIST with its official test part, 28 x 28 bytes.",
    )


def read_idx(path: str | Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes, gzipped when its name ends in .gz.

    The format: two zero bytes, a type byte (8 is unsigned byte), the number of dimensions, each size as a
    big-endian 32-bit integer, then the values.

    Returns:
        array of `dimensions` dimensions.

    Raises:
        ValueError: the file is no such file, or is shorter or longer than its header says.
    """
    path = Path(path)
    content = _content(path)
    header = 4 + 4 * dimensions
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(content) < header or content[:4] != expected:
        raise ValueError(
            f"`{path}` must be an IDX file of unsigned bytes in {dimensions} dimensions, beginning with "
            f"{expected.hex(' ')}; found {content[:4].hex(' ') or 'nothing'}. Fetch the file again."
        )
    sizes = struct.unpack(f">{dimensions}I", content[4:header])
    values = len(content) - header
    if values != math.prod(sizes):
        raise ValueError(
            f"`{path}` must hold {math.prod(sizes)} values, as its header says "
            f"({' x '.join(map(str, sizes))}); found {values}. It is truncated or corrupt: fetch the file "
            "again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(sizes)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise ValueError(
            f"`{path}` must be a whole gzip file; found a truncated or corrupt one ({reason}). Fetch the "
            "file again."
        ) from error


def _candidates(root: str | Path | None) -> list[Path]:
    if root is not None:
        roots = [Path(root).expanduser()]
    else:
        roots = [Path(os.environ["LT_DATA"]).expanduser()] if os.environ.get("LT_DATA") else []
        roots.append(DEBIAN_FOLDER)
    return [base / layout for base in roots for layout in _LAYOUTS]


def fashion_folder(root: str | Path | None = None, download: bool = False) -> Path:
    """Return the folder with the four files; arguments and errors are those of `load_fashion_mnist`."""
    folders = _candidates(root)
    begun = [f for f in folders if any(_present(f, stem) for stem in _FILES.values())]
    whole = [f for f in begun if all(_present(f, stem) for stem in _FILES.values())]
    if whole:
        return whole[0]
    if download:
        return _download(root)
    ways = (
        "Install Debian's package `dataset-fashion-mnist`, pass the folder of the four files as `root` (or "
        "set LT_DATA), or call `load` with `root=FOLDER, download=True`."
    )
    if begun:
        lacking = next(stem for stem in _FILES.values() if not _present(begun[0], stem))
        raise FileNotFoundError(
            f"`{begun[0]}` must hold four IDX files of Fashion-MNIST; `{lacking}` is missing. {ways}"
        )
    looked = root if root is not None else ", ".join(str(f) for f in folders[:: len(_LAYOUTS)])
    raise FileNotFoundError(
        f"Fashion-MNIST must lie in a local folder; found none of its files in {looked}. {ways}"
    )


def _present(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()), None)


def _existing(folder: Path, stem: str) -> Path:
    path = _present(folder, stem)
    assert path is not None
    return path


def _download(root: str | Path | None) -> Path:
    if root is None:
        raise ValueError("`download=True` needs a `root` to write to; found None. Pass `root=FOLDER`.")
    from torchvision.datasets import FashionMNIST  # heavy, and needed for this alone

    base = Path(root).expanduser()
    try:
        FashionMNIST(str(base), download=True)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"Fashion-MNIST could not be downloaded into `{base}` ({error}). Fetch its four IDX files "
            "elsewhere and pass their folder as `root`."
        ) from error
    return base / "FashionMNIST" / "raw"
