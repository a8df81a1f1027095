"""A reader's own images: one sub-folder a class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lt_lib._home import existing
from lt_lib.data.listing import Files, Listing, natural
from lt_lib.data.names import readable
from lt_lib.data.source import Source

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_LAYOUT = "Make one sub-folder a class with its images in it, or two such trees, `train` and `test`."
_PARTS = {"train", "test"}


def load_folder(
    folder: str | Path,
    root: str | Path | None = None,
    size: int = 64,
    memory_limit: int | None = None,
    damaged: str = "refuse",
) -> Source:
    """Load a source from a folder with one sub-folder a class, or with two such trees, `train` and `test`.

    Classes and images are in natural order: by their names with runs of digits taken as numbers ("2" before
    "10"), letters without regard to case. Names may be in any script (see
    `lt_lib.data.names.readable`). Hidden files are skipped; files that are no images by their suffix, dead
    links and devices are counted in the source's note, and live links are followed. Where every
    image holds grey levels only (by its header; a palette counts as colour) the images have one channel,
    else three. The shorter side is resized to `size` and the centre cropped.

    Args:
        folder: a relative path is taken from `root`, else from the current folder, else from the project's.
        root: folder for relative paths; a relative one is looked for in the same two.
        size: height and width of the images.
        memory_limit: see `source_from_files`.
        damaged: likewise.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a folder cannot be read, a class has no image, a class folder holds folders, the test
            tree has a class of its own, or a file is no whole image (named when it is read).
    """
    return list_images(folder, root).source(size, memory_limit, damaged)


def list_images(folder: str | Path, root: str | Path | None = None) -> Listing:
    """List the files that `load_folder` takes, and open none; arguments and errors are its own."""
    base = existing("folder", folder, root, folder=True)
    paired = {entry.name for entry in _visible(base) if entry.is_dir()} == _PARTS and any(
        entry.is_dir() for entry in _visible(base / "train")
    )
    ignored: list[str] = []
    trees = {
        part: _tree(base, folder, ignored)
        for part, folder in ({"train": "train", "test": "test"} if paired else {"train": "."}).items()
    }
    classes = list(trees["train"])
    if paired:
        _check_test(base, classes, list(trees["test"]))
    return Listing(
        f"folder:{readable(base.name)}",
        base,
        {part: _files(tree, classes) for part, tree in trees.items()},
        tuple(readable(name) for name in classes),
        f"Images of `{readable(base.name)}`.{_told(ignored)}",
    )


def _visible(folder: Path) -> list[Path]:
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise ValueError(
            f"The folder `{folder}` must be readable; found that it is not ({error.strerror or error}). "
            "Change its permissions, or leave it out."
        ) from error
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
        taken = images if entry.suffix.lower() in SUFFIXES and entry.is_file() else ignored
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


def _files(tree: dict[str, list[str]], classes: Sequence[str]) -> Files:
    number = {name: c for c, name in enumerate(classes)}
    labels = [number[name] for name, paths in tree.items() for _ in paths]
    names = [path for paths in tree.values() for path in paths]
    return Files(tuple(names), np.array(labels, dtype=np.int64))


def _told(ignored: Sequence[str]) -> str:
    if not ignored:
        return ""
    rest = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
    named = ", ".join(f"`{readable(name)}`" for name in ignored[:3])
    return f" Left out: {named}{rest}, no images within a class."
