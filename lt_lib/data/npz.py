"""A reader's own images in one NumPy archive."""

import math
from dataclasses import replace
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


# pictures compress tenfold, drawings on white a hundredfold; deflate ends at 1,032
_DENSEST, _SMALL = 200, 2**28


def load_npz(file: str | Path, root: str | Path | None = None, damaged: str = "refuse") -> Source:
    """Load a source from an `.npz` archive; nothing in it is ever unpickled.

    The archive holds `train_images` (n, H, W) or (n, H, W, 3), uint8 or finite floats in 0..1, and
    `train_labels` (n,), whole numbers 0..C-1; `test_images` with `test_labels`, and `class_names` (C,), may
    be left out. Without a test part, `split` sets a stratified share aside and says so.

    Args:
        file: the archive; a relative path is taken from `root`, else from the current folder, else from
            the project's.
        root: folder for relative paths; a relative one is looked for in the same two.
        damaged: "leave out" drops images with NaN or infinite pixels and says so in the note; "refuse" names
            the first.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no archive, lacks an array, holds one it should not, an array is malformed, or
            one would take 200 times the bytes of the archive and more than 256 MiB.
    """
    return read_npz(file, root, damaged)[0]


def read_npz(
    file: str | Path, root: str | Path | None = None, damaged: str = "refuse"
) -> tuple[Source, dict[str, dict[int, int]]]:
    """Return what `load_npz` returns, and the labels of images left out of each part, by position."""
    path = existing("npz", file, root)
    arrays = _checked_arrays(path)
    note = f"Images of `{path.name}`."
    dropped: dict[str, dict[int, int]] = {}
    for kind in ("train", "test") if damaged == "leave out" else ():
        dropped[kind] = bad = _drop_not_finite(arrays, kind)
        if bad:
            what = "NaN or infinite pixels"
            note += f" {len(bad)} {kind} images left out: {what}, the first in image {min(bad)}."
    source = source_from_arrays(f"npz:{path.name}", **arrays, note=note)
    train, test = (_renumbered(getattr(source, kind), dropped.get(kind, {})) for kind in ("train", "test"))
    return replace(source, train=train, test=test), dropped


def _renumbered(part: Any, dropped: dict[int, int]) -> Any:
    """Let `index` count the dropped images too, as the archive does."""
    if not dropped:
        return part
    kept = np.setdiff1d(np.arange(len(part) + len(dropped)), list(dropped))
    return replace(part, index=part.index.new_tensor(kept))


def _checked_arrays(path: Path) -> dict[str, Any]:
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
    return arrays


def _drop_not_finite(arrays: dict[str, Any], kind: str) -> dict[int, int]:
    images, labels = arrays.get(f"{kind}_images"), arrays.get(f"{kind}_labels")
    if images is None or labels is None or images.ndim < 3 or images.dtype.kind != "f":
        return {}
    if len(images) != len(labels):
        return {}  # refused later
    # image by image: the whole array's flags would take as much memory as bytes do
    bad = np.array([not np.isfinite(image).all() for image in images], dtype=bool)
    if not bad.any() or bad.all():
        return {}
    lost = np.setdiff1d(labels[bad], labels[~bad])
    if kind == "train" and len(lost):
        raise ValueError(
            f"Class {lost[0]} must have an image without NaN and infinite pixels in `{kind}_images`; found "
            f"{int((labels == lost[0]).sum())} with them and none without. Mend its images, or leave the "
            "class out and renumber the labels."
        )
    arrays[f"{kind}_images"], arrays[f"{kind}_labels"] = images[~bad], labels[~bad]
    return dict(zip(np.flatnonzero(bad).tolist(), labels[bad].tolist(), strict=True))


def _arrays(path: Path) -> dict[str, Any]:
    try:
        # opened here: a file that `np.load` opens itself stays open when it turns out to be no archive
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one bare array")
            _check_bomb(path, archive)
            # what is refused anyway is not read
            return {name: archive[name] if name in NPZ_KEYS else None for name in archive.files}
    except Exception as error:  # zipfile, its four decoders and NumPy's parser each raise kinds of their own
        reason = _why_unreadable(error)
        raise ValueError(
            f"`{path.name}` must be an `.npz` archive of plain arrays; found {reason}. Write it with "
            "`np.savez(file, train_images=..., train_labels=...)`, strings as `dtype=str`."
        ) from error


def _why_unreadable(error: Exception) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    if text.startswith("an archive bomb"):
        return text
    if "Object arrays" in text:
        return "an array of Python objects"
    if "allow_pickle" in text:  # NumPy goes on to advise it
        return "no archive at all, or pickled objects, which are never read"
    return f"none that can be read ({text:.120})"


def _check_bomb(path: Path, archive: Any) -> None:
    """Refuse by the headers, before anything is decompressed."""
    packed = path.stat().st_size
    for member in archive.zip.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in NPZ_KEYS:
            continue
        with archive.zip.open(member) as file:
            size = max(member.file_size, _claimed(file))
        if size > max(_SMALL, _DENSEST * packed):
            raise ValueError(f"an archive bomb, `{name}` of {size / 2**30:.3g} GiB in {packed} bytes of file")


def _claimed(file: Any) -> int:
    """Bytes of the array that a header announces."""
    version = np.lib.format.read_magic(file)
    # version 3.0 differs from 2.0 in the letters that names of fields may hold
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return int(math.prod(shape) * dtype.itemsize)


def _check_keys(path: Path, names: list[str]) -> None:
    for name in names:
        if name not in NPZ_KEYS:
            other = _OTHER_NAMES.get(name.lower())
            held = name.lower().startswith(("val", "dev"))  # close to `train` by its letters alone
            near = [other] if other else [] if held else get_close_matches(name, NPZ_KEYS, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else "Leave it out of the archive."
            raise ValueError(f"`{path.name}` may hold only {', '.join(NPZ_KEYS)}; found `{name}`. {hint}")
