"""CIFAR-10 and CIFAR-100 from the official Python batches, as torchvision leaves them on disk."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct

from lt_lib.data.roots import data_roots, find_folder
from lt_lib.data.source import Source, source_from_arrays

# All that the official files call for, under the module's names before and after NumPy 2.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass(frozen=True)
class Batches:
    """One of the two sets on disk: its files, each with the MD5 by which torchvision knows it."""

    title: str
    folder: str
    archive: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels: str  # key of the labels in a batch
    names: str  # key of the class names in the meta file


SETS = {
    "cifar10": Batches(
        title="CIFAR-10",
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels="labels",
        names="label_names",
    ),
    "cifar100": Batches(
        title="CIFAR-100",
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels="fine_labels",
        names="fine_label_names",
    ),
}


def load_cifar(name: str, root: str | Path | None = None, download: bool = False) -> Source:
    """Load CIFAR-10 or CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images, 32 x 32 RGB, balanced classes.

    The batches are pickles. Each file's checksum is compared before it is opened, and what is then read may
    hold arrays, texts and numbers only. Images keep the order of the files, so that
    `long_tail(source, exponential_counts(largest, imbalance, classes), seed=0, draw="cao2019")` keeps the
    images of the literature's long-tailed subsets: at imbalance 100, 12,406 of CIFAR-10 (largest 5,000) and
    10,847 of CIFAR-100 (largest 500). They leave no calibration data.

    Args:
        name: "cifar10" or "cifar100".
        root: the folder with the batches, or the one above it (the root that torchvision was given). None
            looks into the folder that the environment variable LT_DATA names.
        download: let torchvision fetch the files into `root` when they are not there. Never by default.

    Raises:
        FileNotFoundError: a file is not there; says how to get it.
        ValueError: a file is not the published one.
        RuntimeError: the download failed.
    """
    files = SETS[name]
    folder = cifar_folder(name, root, download)
    parts: dict[str, Any] = {}
    for kind, members in (("train", files.train), ("test", files.test)):
        batches = [_read(folder / file, md5, files) for file, md5 in members.items()]
        pixels = np.concatenate([batch["data"] for batch in batches])
        parts[f"{kind}_images"] = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts[f"{kind}_labels"] = np.concatenate([np.asarray(batch[files.labels]) for batch in batches])
    ((file, md5),) = files.meta.items()
    names = _read(folder / file, md5, files)[files.names]
    note = f"{files.title} with its official test part, 32 x 32 bytes in RGB."
    return source_from_arrays(name, **parts, class_names=names, note=note)


def cifar_folder(name: str, root: str | Path | None = None, download: bool = False) -> Path:
    """Return the folder with the batches; arguments and errors are those of `load_cifar`."""
    files = SETS[name]
    ways = (
        f"Unpack `{files.archive}` from https://www.cs.toronto.edu/~kriz/cifar.html there, pass the folder "
        "above it as `root` (or set LT_DATA), or call `load` with `root=FOLDER, download=True`."
    )
    every = [*files.train, *files.test, *files.meta]
    try:
        return find_folder(root, (files.folder, ""), every, files.title, ways)
    except FileNotFoundError:
        if not download:
            raise
    return _download(name, files, root)


def _download(name: str, files: Batches, root: str | Path | None) -> Path:
    if root is None:
        raise ValueError("`download=True` needs a `root` to write to; found None. Pass `root=FOLDER`.")
    from torchvision import datasets  # heavy, and needed for this alone

    base = data_roots(root)[0]
    try:
        getattr(datasets, name.upper())(str(base), download=True)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"{files.title} could not be downloaded into `{base}` ({error}). Fetch `{files.archive}` "
            "elsewhere, unpack it, and pass its folder as `root`."
        ) from error
    return base / files.folder


class _PlainUnpickler(pickle.Unpickler):
    """Reads arrays, texts, numbers, lists and dictionaries, and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for `{module}.{name}`") from None


def _read(path: Path, md5: str, files: Batches) -> dict[str, Any]:
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(
            f"`{path}` must be the published file with MD5 {md5}; found {found}. It is truncated, corrupt or "
            f"another file: unpack `{files.archive}` from https://www.cs.toronto.edu/~kriz/cifar.html again."
        )
    try:
        entries: dict[str, Any] = _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"`{path}` must hold arrays and texts only, but {error}. Unpack `{files.archive}` again."
        ) from error
    return entries
