"""Images with labels: one part, a source as it was loaded, and a split ready for training."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lt_lib.data.files import ImageFiles
from lt_lib.data.validation import check_classes, check_pixels, labels_from, pixels_from


@dataclass(frozen=True)
class Part:
    """Images and labels that stay together. The images are a tensor, or files that are decoded when needed.

    Raises:
        ValueError: shapes, types or lengths do not fit each other.
    """

    images: Tensor | ImageFiles  # (n, ch, H, W) uint8 in 0..255, or float32 in 0..1
    labels: Tensor  # (n,) int64
    index: Tensor  # (n,) int64, position in the part of the source that the images were drawn from
    groups: Tensor | None = None  # (n,) int64: images of one group (one lesion, say) never part in a split

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise ValueError(
                f"`images` must be (n, ch, H, W) of uint8 or float32; found {tuple(self.images.shape)} of "
                f"{self.images.dtype}. Reshape or convert them first."
            )
        for value, name in ((self.labels, "labels"), (self.index, "index"), (self.groups, "groups")):
            if value is None:
                continue
            if value.dtype != torch.int64 or tuple(value.shape) != (len(self.images),):
                raise ValueError(
                    f"`{name}` must be int64, one entry for each of the {len(self.images)} images; found "
                    f"shape {tuple(value.shape)} of {value.dtype}. Pass one whole number an image."
                )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Part({_summary(self)})"

    @property
    def channels(self) -> int:
        """Colour channels: 1 or 3."""
        return int(self.images.shape[1])

    def counts(self, classes: int) -> Tensor:
        """Images a class, int64 (classes,); 0 for an absent class."""
        return torch.bincount(self.labels, minlength=classes)

    def take(self, positions: Any) -> "Part":
        """Return the images at `positions` (m,) of this part; their `index` still points into the source."""
        where = torch.as_tensor(positions, dtype=torch.int64)
        labels, index = self.labels.index_select(0, where), self.index.index_select(0, where)
        groups = None if self.groups is None else self.groups.index_select(0, where)
        if isinstance(self.images, ImageFiles):
            return Part(self.images.take(where), labels, index, groups)
        # index_select copies whole images; indexing by [] is three times slower
        return Part(self.images.index_select(0, where), labels, index, groups)

    def in_memory(self) -> Tensor:
        """Return the images as one tensor (n, ch, H, W); files are decoded, whatever memory that takes."""
        return self.images.decode() if isinstance(self.images, ImageFiles) else self.images

    def fingerprint(self) -> str:
        """Hex SHA-256 of pixels and labels, with their shapes and types.

        Of files: of their relative paths, sizes in bytes, samples of content and labels, and of how they are
        decoded; see `ImageFiles.fingerprint`.
        """
        if isinstance(self.images, ImageFiles):
            return hashlib.sha256(f"{self.images.fingerprint()} {_digest(self.labels)}".encode()).hexdigest()
        return _digest(self.images, self.labels)

    def index_fingerprint(self) -> str:
        """Hex SHA-256 of the drawn positions, to publish: it tells others whether they drew the same."""
        return _digest(self.index)


@dataclass(frozen=True)
class Source:
    """Labelled images as they were loaded: labels run from 0 to C - 1 and each class has a training image.

    The source's own test and calibration parts may lack a class: metrics then name it as absent.

    Raises:
        ValueError: labels leave 0..C-1, a class has no training image, or pixels are NaN or outside 0..1.
    """

    name: str
    train: Part
    test: Part | None
    class_names: tuple[str, ...]  # (C,), all different
    note: str  # where the images come from, and what was done to them
    calibration: Part | None = None  # where the source brings one of its own

    def __post_init__(self) -> None:
        if len(set(self.class_names)) != len(self.class_names):
            doubled = next(n for n in self.class_names if self.class_names.count(n) > 1)
            raise ValueError(f"`class_names` must all differ; found `{doubled}` twice. Rename one of them.")
        check_classes(self.train.labels, self.classes, "train_labels", require_all=True)
        check_pixels(self.train.images, "train_images")
        for part, kind in ((self.test, "test"), (self.calibration, "calibration")):
            if part is not None:
                self._check_held_out(part, kind)

    def _check_held_out(self, part: Part, kind: str) -> None:
        check_classes(part.labels, self.classes, f"{kind}_labels", require_all=False)
        check_pixels(part.images, f"{kind}_images")
        here, there = ((*p.images.shape[1:], p.images.dtype) for p in (self.train, part))
        if here != there:
            raise ValueError(
                f"`{kind}_images` must match `train_images` in channels, height, width and type {here}; "
                f"found {there}. Resize or convert one of them."
            )

    def __repr__(self) -> str:
        own = {} if self.calibration is None else {"calibration": self.calibration}
        return f"Source({_described(self, {'train': self.train, 'test': self.test, **own})})"

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def counts(self) -> Tensor:
        """Training images a class, int64 (C,)."""
        return self.train.counts(self.classes)


@dataclass(frozen=True)
class Split:
    """Disjoint parts: train (long-tailed or not), calibration (None unless asked for) and test."""

    name: str
    train: Part
    calibration: Part | None
    test: Part
    class_names: tuple[str, ...]  # (C,)
    note: str  # how the parts came about

    def __repr__(self) -> str:
        parts = {"train": self.train, "calibration": self.calibration, "test": self.test}
        return f"Split({_described(self, parts)})"

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def counts(self) -> Tensor:
        """Training images a class, int64 (C,)."""
        return self.train.counts(self.classes)

    def parts(self) -> dict[str, Part]:
        """The parts that exist, by name, in the order train, calibration, test."""
        every = {"train": self.train, "calibration": self.calibration, "test": self.test}
        return {name: part for name, part in every.items() if part is not None}

    def fingerprint(self) -> str:
        """Hex SHA-256 of the pixels and labels of every part."""
        lines = [f"{name} {part.fingerprint()}" for name, part in self.parts().items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def source_from_arrays(
    name: str,
    train_images: Any,
    train_labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    class_names: Any = None,
    note: str = "",
) -> Source:
    """Build a source from plain arrays: the door for a reader's own data.

    Args:
        name: what to call the data.
        train_images: (n, H, W), (n, H, W, 1) or (n, H, W, 3), uint8 or finite floats in 0..1.
        train_labels: (n,) whole numbers 0..C-1, each class at least once.
        test_images: like `train_images`, or None when there is no test part of its own.
        test_labels: (m,), given together with `test_images`.
        class_names: (C,) different names; None takes "0", "1", ... up to the largest training label.
        note: where the images come from.

    Raises:
        ValueError: anything else, in one sentence that names the argument and the way out.
    """
    if (test_images is None) != (test_labels is None):
        given, lacking = ("labels", "images") if test_images is None else ("images", "labels")
        raise ValueError(
            f"`test_{given}` came without `test_{lacking}`. Pass both, or neither and the data will be split."
        )
    train = _part(train_images, train_labels, "train")
    test = None if test_images is None else _part(test_images, test_labels, "test")
    if class_names is None:
        # more classes than images is a gap already: do not name a billion classes for one stray label
        names = tuple(str(c) for c in range(min(int(train.labels.max()), len(train)) + 1))
    else:
        names = tuple(str(c) for c in np.asarray(class_names).reshape(-1).tolist())
    return Source(name, train, test, names, note)


def _part(images: Any, labels: Any, kind: str) -> Part:
    pixels = pixels_from(images, f"{kind}_images")
    numbers = labels_from(labels, f"{kind}_labels")
    if len(pixels) != len(numbers):
        raise ValueError(
            f"`{kind}_images` and `{kind}_labels` must be equally long; found {len(pixels)} images and "
            f"{len(numbers)} labels. Pass one label an image."
        )
    return Part(pixels, numbers, torch.arange(len(numbers)))


def _summary(part: Part) -> str:
    shape = " x ".join(str(size) for size in part.images.shape[1:])
    kind = "on disk" if isinstance(part.images, ImageFiles) else str(part.images.dtype).removeprefix("torch.")
    return f"{len(part)} images {shape} {kind}"


def _described(data: Source | Split, parts: dict[str, Part | None]) -> str:
    """Counts and shapes on one line: pixels would flood the screen."""
    counts = data.counts
    told = [f"{name}: {'none' if part is None else _summary(part)}" for name, part in parts.items()]
    a_class = f"{data.classes} classes of {int(counts.min())} to {int(counts.max())} training images"
    return "; ".join([f"'{data.name}': {a_class}", *told])


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()
