"""A reader's own images in one NumPy archive."""

import zipfile
import zlib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from lt_lib._home import existing
from lt_lib.data.source import Source, source_from_arrays

NPZ_KEYS = ("train_images", "train_labels", "test_images", "test_labels", "class_names")
# `get_close_matches` would send a bare `images` to the test part
_OTHER_NAMES = {
    **dict.fromkeys(("images", "image", "x", "data", "pixels"), "train_images"),
    **dict.fromkeys(("labels", "label", "y", "targets"), "train_labels"),
    **dict.fromkeys(("x_train", "images_train"), "train_images"),
    **dict.fromkeys(("y_train", "labels_train"), "train_labels"),
    **dict.fromkeys(("x_test", "images_test"), "test_images"),
    **dict.fromkeys(("y_test", "labels_test"), "test_labels"),
    **dict.fromkeys(("classes", "names", "label_names"), "class_names"),
}


def load_npz(file: str | Path, root: str | Path | None = None) -> Source:
    """Load a source from an `.npz` archive; nothing in it is ever unpickled.

    The archive holds `train_images` (n, H, W) or (n, H, W, 3), uint8 or finite floats in 0..1, and
    `train_labels` (n,), whole numbers 0..C-1; `test_images` with `test_labels`, and `class_names` (C,), may
    be left out. Without a test part, `split` sets a stratified share aside and says so.

    Args:
        file: the archive; a relative path is taken from `root`, else from the current folder, else from
            the project's.
        root: folder for relative paths; a relative one is looked for in the same two.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no archive, lacks an array, holds one it should not, or an array is malformed.
    """
    path = existing("npz", file, root)
    arrays = _arrays(path)
    _check_keys(path, list(arrays))
    for name in ("train_images", "train_labels"):
        if name not in arrays:
            raise ValueError(
                f"`{path.name}` must hold `train_images` and `train_labels`; `{name}` is missing (found "
                f"{', '.join(sorted(arrays)) or 'nothing'}). Save it with `np.savez(file, {name}=...)`."
            )
    names = arrays.get("class_names")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise ValueError(
            f"`class_names` must be a one-dimensional array of strings; found shape {names.shape} of "
            f"{names.dtype}. Save it with `np.array([...], dtype=str)`."
        )
    return source_from_arrays(f"npz:{path.name}", **arrays, note=f"Images of `{path.name}`.")


def _arrays(path: Path) -> dict[str, Any]:
    try:
        # opened here: a file that `np.load` opens itself stays open when it turns out to be no archive
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one bare array")
            # what is refused anyway is not read
            return {name: archive[name] if name in NPZ_KEYS else None for name in archive.files}
    except (
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        MemoryError,
    ) as error:
        pickled = "allow_pickle" in str(error) and "Object arrays" in str(error)
        reason = (
            "an array of Python objects" if pickled else f"none that can be read ({str(error).rstrip('.')})"
        )
        raise ValueError(
            f"`{path.name}` must be an `.npz` archive of plain arrays; found {reason}. Write it with "
            "`np.savez(file, train_images=..., train_labels=...)`, strings as `dtype=str`."
        ) from error


def _check_keys(path: Path, names: list[str]) -> None:
    for name in names:
        if name not in NPZ_KEYS:
            other = _OTHER_NAMES.get(name.lower())
            near = [other] if other else get_close_matches(name, NPZ_KEYS, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else "Leave it out of the archive."
            raise ValueError(f"`{path.name}` may hold only {', '.join(NPZ_KEYS)}; found `{name}`. {hint}")
