"""ImageNet-LT and iNaturalist 2018: lists of "path label" lines over a folder of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath

import numpy as np
from numpy.typing import NDArray

from lt_lib.data.disk import source_from_files
from lt_lib.data.files import ImageFiles, check_inside
from lt_lib.data.roots import find_folder, read_text
from lt_lib.data.source import Source

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Listed:
    """A data set whose split was published as two lists."""

    title: str
    lists: tuple[str, str]  # training and test list
    lines: tuple[int, int]  # images in each
    classes: int
    list_folders: tuple[str, ...]  # where the lists may lie below the root
    image_folders: tuple[str, ...]  # likewise the folder that paths start from
    images_from: str  # how to get the images
    lists_from: str

    @property
    def ways(self) -> str:
        """What to get and where to put it."""
        return (
            f"Get the lists from {self.lists_from} and {self.images_from}, put both into one folder, and "
            "pass it as `root` (or set LT_DATA)."
        )


SETS = {
    "imagenet_lt": Listed(
        title="ImageNet-LT",
        lists=("ImageNet_LT_train.txt", "ImageNet_LT_test.txt"),
        lines=(115_846, 50_000),
        classes=1000,
        list_folders=("", "ImageNet_LT", "data_txt", "data_txt/ImageNet_LT"),
        image_folders=("", "ImageNet", "ImageNet_LT"),
        images_from="the images (`train/` and `val/` with one folder a class) from https://image-net.org",
        lists_from="https://github.com/zhmiao/OpenLongTailRecognition-OLTR",
    ),
    "inaturalist2018": Listed(
        title="iNaturalist 2018",
        lists=("iNaturalist18_train.txt", "iNaturalist18_val.txt"),
        lines=(437_513, 24_426),
        classes=8142,
        list_folders=("", "iNaturalist18", "data_txt", "data_txt/iNaturalist18"),
        image_folders=("", "iNaturalist18"),
        images_from="the images (`train_val2018/`) from https://github.com/visipedia/inat_comp",
        lists_from="https://github.com/facebookresearch/classifier-balancing",
    ),
}


def load_listed(
    name: str,
    root: str | Path | None = None,
    size: int = 224,
    memory_limit: int | None = None,
    damaged: str = "refuse",
) -> Source:
    """Load ImageNet-LT (arXiv 1904.05160) or iNaturalist 2018 (arXiv 1707.06642) by their published lists.

    The test part of ImageNet-LT is its balanced test list (ImageNet's validation images); its validation
    list is not read. The test part of iNaturalist is its validation list, as in the literature. Images come
    as RGB with the shorter side at 8/7 of `size` (256 at 224). A class is called by the folder of its
    training images where that tells classes apart, else by its number.

    Args:
        name: "imagenet_lt" or "inaturalist2018".
        root: folder with the two lists and the images, or with sub-folders that hold them (see `SETS`).
            None looks into the folder that the environment variable LT_DATA names.
        size: height and width of the images.
        memory_limit: see `source_from_files`.
        damaged: likewise.

    Raises:
        FileNotFoundError: a list or a listed image is not there; says what to get and where to put it.
        ValueError: a list is not the published one, names an image twice, or leaves the folder.
    """
    listed = SETS[name]
    folder = list_folder(name, root)
    read = [
        _read(folder / file, lines, listed.classes)
        for file, lines in zip(listed.lists, listed.lines, strict=True)
    ]
    (train_names, train_labels), (test_names, test_labels) = read
    _check_apart(train_names, test_names, listed)
    images = _image_folder(root, folder, train_names[0], listed)
    train, test = (ImageFiles(images, names, size, shorter=round(size * 8 / 7)) for names, _ in read)
    note = f"{listed.title} by its published lists."
    return source_from_files(
        name,
        (train, train_labels),
        (test, test_labels),
        _class_names(train_names, train_labels, listed.classes),
        note,
        memory_limit,
        damaged=damaged,
    )


def list_folder(name: str, root: str | Path | None = None) -> Path:
    """Return the folder with the two lists; arguments and errors are those of `load_listed`."""
    listed = SETS[name]
    return find_folder(root, listed.list_folders, listed.lists, listed.title, listed.ways)


def _read(path: Path, lines: int, classes: int) -> tuple[list[str], Labels]:
    names, labels = [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().replace("\t", " ").rpartition(" ")
        if not name or not label.isdecimal() or len(label) > 9:
            raise ValueError(
                f"Line {number} of `{path}` must be `path label`; found `{line[:80]}`. Fetch the list again."
            )
        check_inside(name.strip(), f"Line {number} of `{path}`")
        names.append(normpath(name.strip()))  # `./a//b` is `a/b`: one image, one name
        labels.append(int(label))
    found = np.asarray(labels, dtype=np.int64)
    seen = len(np.unique(found))
    if len(names) != lines or seen != classes or found.max() != classes - 1:  # `seen` settles an empty list
        raise ValueError(
            f"`{path}` must list {lines} images of {classes} classes 0..{classes - 1}; found {len(names)} "
            f"images of {seen} classes{f', the last {found.max()}' if seen else ''}. Fetch the list again."
        )
    return names, found


def _check_apart(train: Sequence[str], test: Sequence[str], listed: Listed) -> None:
    seen: set[str] = set()
    for name in (*train, *test):
        if name in seen:
            raise ValueError(
                f"`{' and '.join(listed.lists)}` must name an image once; found `{name}` twice. Fetch the "
                "lists again."
            )
        seen.add(name)


def _image_folder(root: str | Path | None, lists: Path, first: str, listed: Listed) -> Path:
    if (lists / first).is_file():
        return lists
    what = f"The image folder of {listed.title}"
    return find_folder(root, listed.image_folders, [first], what, listed.ways)


def _class_names(names: Sequence[str], labels: Labels, classes: int) -> list[str]:
    folders: dict[int, set[str]] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        folders.setdefault(label, set()).add(name.rsplit("/", 1)[0].rsplit("/", 1)[-1])
    called = [folder for c in range(classes) for folder in folders[c]]
    return called if len(set(called)) == len(called) == classes else [str(c) for c in range(classes)]
