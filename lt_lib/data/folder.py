"""A reader's own images: one sub-folder a class."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lt_lib._home import existing
from lt_lib.data.disk import source_from_files
from lt_lib.data.files import ImageFiles, is_gray
from lt_lib.data.source import Source

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_LAYOUT = "Make one sub-folder a class with its images in it, or two such trees, `train` and `test`."
_PARTS = {"train", "test"}


def load_folder(
    folder: str | Path, root: str | Path | None = None, size: int = 64, memory_limit: int | None = None
) -> Source:
    """Load a source from a folder with one sub-folder a class, or with two such trees, `train` and `test`.

    Classes and images are in natural order: by their names with runs of digits taken as numbers ("2" before
    "10"), letters without regard to case. Names may be in any script. Hidden files are skipped; files that
    are no images by their suffix are counted in the source's note. Where every image holds grey levels only
    (by its header; a palette counts as colour) the images have one channel, else three. The shorter side is
    resized to `size` and the centre cropped.

    Args:
        folder: a relative path is taken from `root`, else from the current folder, else from the project's.
        root: folder for relative paths; a relative one is looked for in the same two.
        size: height and width of the images.
        memory_limit: see `source_from_files`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a class has no image, a class folder holds folders, the test tree has a class of its own,
            or a file is no whole image (named when it is read).
    """
    base = existing("folder", folder, root, folder=True)
    paired = {entry.name for entry in _visible(base) if entry.is_dir()} == _PARTS and any(
        entry.is_dir() for entry in _visible(base / "train")
    )
    ignored: list[str] = []
    trees = {part: _tree(base, part, ignored) for part in (("train", "test") if paired else (".",))}
    train = next(iter(trees.values()))
    classes = list(train)
    if paired:
        _check_test(base, classes, list(trees["test"]))
    every = [base / path for tree in trees.values() for paths in tree.values() for path in paths]
    channels = 1 if all(is_gray(path) for path in every) else 3
    parts = [_files(base, tree, classes, size, channels) for tree in trees.values()]
    names = [unicodedata.normalize("NFC", name) for name in classes]
    note = f"Images of `{base.name}`.{_told(ignored)}"
    return source_from_files(
        f"folder:{base.name}", parts[0], parts[1] if paired else None, names, note, memory_limit
    )


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key by which runs of digits compare as numbers; ties are broken by the name itself."""
    pieces = re.findall(r"\d+|\D+", unicodedata.normalize("NFC", name).casefold())
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces], name


def _visible(folder: Path) -> list[Path]:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(entries, key=lambda entry: natural(entry.name))


def _tree(base: Path, part: str, ignored: list[str]) -> dict[str, list[str]]:
    """Paths relative to `base` of each class's images; appends what is left out to `ignored`."""
    classes: dict[str, list[str]] = {}
    for entry in _visible(base / part):
        if not entry.is_dir():
            ignored.append(entry.relative_to(base).as_posix())
            continue
        classes[entry.name] = _images(base, entry, ignored)
    if not classes:
        raise ValueError(f"`{base / part}` must hold one sub-folder a class; found none. {_LAYOUT}")
    return classes


def _images(base: Path, folder: Path, ignored: list[str]) -> list[str]:
    images: list[str] = []
    for entry in _visible(folder):
        if entry.is_dir():
            raise ValueError(
                f"`{folder}` must hold the images of one class; found the folder `{entry.name}` in it. "
                f"{_LAYOUT}"
            )
        taken = images if entry.suffix.lower() in SUFFIXES else ignored
        taken.append(entry.relative_to(base).as_posix())
    if not images:
        raise ValueError(
            f"`{folder}` must hold at least one image ({', '.join(SUFFIXES)}); found none. Add images, or "
            "remove the folder of this class."
        )
    return images


def _check_test(base: Path, train: Sequence[str], test: Sequence[str]) -> None:
    strange = [name for name in test if name not in train]
    if strange:
        raise ValueError(
            f"`{base / 'test'}` must hold classes of `train` only; found `{strange[0]}`. Add training images "
            "of this class, or rename its folder as in `train`."
        )


def _files(
    base: Path, tree: dict[str, list[str]], classes: Sequence[str], size: int, channels: int
) -> tuple[ImageFiles, NDArray[np.int64]]:
    names = [name for paths in tree.values() for name in paths]
    labels = [classes.index(c) for c, paths in tree.items() for _ in paths]
    return ImageFiles(base, names, size, channels), np.array(labels, dtype=np.int64)


def _told(ignored: Sequence[str]) -> str:
    if not ignored:
        return ""
    rest = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
    return f" Left out: {', '.join(f'`{name}`' for name in ignored[:3])}{rest}, no images within a class."
