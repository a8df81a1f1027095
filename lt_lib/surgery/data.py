"""Which images surgery may see, told apart by type: images for the Hessian, calibration images, no others.

The paper builds its Hessian on training images and takes both the sensitivities and every decision of the
loop from half of the *test* set (arXiv 2605.07790; the released code likewise). Here the loop takes a
`HessianImages` and a `Calibration` and nothing else, and those that come from a split come from its train and
calibration parts.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_finite, check_labels, check_whole
from lt_lib.data import Part, Split, normalisation


@dataclass(frozen=True, eq=False)
class HessianImages:
    """Training images whose mean loss is differentiated twice.

    Raises:
        ValueError: pixels in uint8 or NaN, labels that are no class numbers, or lengths that differ.
    """

    images: Tensor  # (n, ...) float, as the network takes them: normalised
    labels: Tensor  # (n,) int64

    def __post_init__(self) -> None:
        _check(self.images, self.labels, None, "Hessian images")
        object.__setattr__(self, "labels", self.labels.to(torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"HessianImages({len(self)} images of shape {tuple(self.images.shape[1:])})"

    @classmethod
    def from_split(
        cls, split: Split, count: int = 256, seed: int = 0, balanced: bool = False
    ) -> "HessianImages":
        """Draw `count` images of the train part, normalised with its mean and deviation.

        The published loop keeps one random mini-batch (128 images for CIFAR-10, 256 for the others) for all
        iterations; so does this one.

        Args:
            split: whose train part is drawn from; what its calibration part holds, too, is left out.
            count: images, at most.
            seed: of the draw.
            balanced: as many of each class as `count // C`, or all of a class that has fewer.

        Raises:
            ValueError: `count` is outside 1..n, or below C with `balanced`.
        """
        least = split.classes if balanced else 1
        if not least <= count <= len(split.train):
            raise ValueError(
                f"`count` must be {least}..{len(split.train)}, the training images there are; found {count}."
            )
        order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(seed))
        if balanced:
            labels = split.train.labels[order]
            each = [order[labels == c][: count // split.classes] for c in range(split.classes)]
            order = torch.cat(each)
        part = split.train.take(order[:count])
        if split.calibration is not None:
            known = set(digests(split.calibration.images))
            kept = [i for i, digest in enumerate(digests(part.images)) if digest not in known]
            part = part.take(kept)
        return cls(*_normalised(part, split.train))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Images set aside from training, on which sensitivities are measured and steps are judged.

    Raises:
        ValueError: as `HessianImages`; or a class has no image.
    """

    images: Tensor  # (n, ...) float, as the network takes them: normalised
    labels: Tensor  # (n,) int64
    classes: int  # C

    def __post_init__(self) -> None:
        check_whole(self.classes, "classes", 2)
        _check(self.images, self.labels, self.classes, "calibration images")
        object.__setattr__(self, "labels", self.labels.to(torch.int64))
        absent = (self.counts == 0).nonzero().flatten().tolist()
        if absent:
            raise ValueError(
                f"Class {absent[0]} has no calibration image ({len(absent)} of {self.classes} classes have "
                "none), so its accuracy is unknown and nothing could protect it. Set some images of each "
                "class aside, or drop the class."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Calibration({len(self)} images of {self.classes} classes)"

    @property
    def counts(self) -> Tensor:
        """Images a class, int64 (C,)."""
        return torch.bincount(self.labels, minlength=self.classes)

    @classmethod
    def from_split(cls, split: Split, drop_shared: bool = False) -> "Calibration":
        """Take the calibration part, normalised with the train part's mean and deviation.

        Args:
            split: made with `calibration=...`.
            drop_shared: leave out calibration images that are in the test part as well, pixel for pixel.

        Raises:
            ValueError: there is no calibration part, or it shares images with the test part.
        """
        if split.calibration is None:
            raise ValueError(
                "The split has no calibration part, and test images must not steer surgery. Set some aside: "
                "`lt_lib.data.split(source, calibration=20)`."
            )
        part = split.calibration
        test = set(digests(split.test.images))
        kept = [i for i, digest in enumerate(digests(part.images)) if digest not in test]
        if len(kept) < len(part) and not drop_shared:
            raise ValueError(
                f"{len(part) - len(kept)} of the {len(part)} calibration images are also in the test part, "
                "which would then judge what it has steered. Pass `drop_shared=True` to leave them out of "
                "the calibration images, or split without duplicates."
            )
        return cls(*_normalised(part.take(kept), split.train), split.classes)


def check_disjoint(hessian: Any, calibration: Any, test: Any = None) -> None:
    """Refuse sets that share an image, pixel for pixel (in float32, or in the coarsest precision of a set).

    Args:
        hessian: `HessianImages`, `Calibration`, or images (n, ...).
        calibration: likewise.
        test: likewise, normalised in the same way; None: not compared. It is read here and nowhere else.

    Raises:
        ValueError: two sets share an image; how many is said.
    """
    sets = {"Hessian images": hessian, "calibration images": calibration, "test images": test}
    pixels = {name: getattr(given, "images", given) for name, given in sets.items() if given is not None}
    for name, images in pixels.items():
        if isinstance(images, str) or not hasattr(images, "split"):
            raise ValueError(
                f"The {name} must be a tensor (n, ...), normalised; found {type(images).__name__}. Convert "
                "it with `torch.as_tensor`."
            )
    kinds = {name: getattr(images, "dtype", None) for name, images in pixels.items()}
    raw = [name for name, kind in kinds.items() if kind == torch.uint8]
    if raw and len(raw) < len(kinds):
        raise ValueError(
            f"The {raw[0]} are pixels in uint8, other sets are not, so that no image could be found again. "
            "Normalise all sets in the same way."
        )
    floats = [kind for kind in kinds.values() if kind is not None and kind.is_floating_point]
    coarsest = max([torch.float32, *floats], key=lambda kind: torch.finfo(kind).eps)
    seen = {name: set(digests(_comparable(images, coarsest))) for name, images in pixels.items()}
    names = list(seen)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            shared = len(seen[first] & seen[second])
            if shared:
                raise ValueError(
                    f"The {first} and the {second} must be disjoint; found {shared} that are in both, pixel "
                    "for pixel. Take each image out of one of them: what is measured on images that were "
                    "used before is too good."
                )


def digests(images: Any) -> list[bytes]:
    """Return 16 bytes of SHA-256 of each image's type, shape and pixels; images are a tensor, or files."""
    found = []
    for block in images.split(256):
        rows = block.detach().cpu().contiguous()
        head = f"{rows.dtype} {tuple(rows.shape[1:])};".encode()
        raw = rows.reshape(len(rows), -1).view(torch.uint8).numpy()  # numpy has no bfloat16
        found += [hashlib.sha256(head + row.tobytes()).digest()[:16] for row in raw]
    return found


def _comparable(images: Any, dtype: torch.dtype) -> Any:
    """Return floats in `dtype`, with one zero instead of two; anything else as it is."""
    floats = isinstance(images, Tensor) and images.is_floating_point()
    return images.detach().to(dtype) + 0.0 if floats else images


def _check(images: Tensor, labels: Tensor, classes: int | None, name: str) -> None:
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise ValueError(
            f"The {name} and their labels must be tensors; found {type(images).__name__} and "
            f"{type(labels).__name__}. Convert them with `torch.as_tensor`."
        )
    if 0 in (images.ndim, labels.ndim) or len(images) == 0 or len(images) != len(labels):
        raise ValueError(
            f"The {name} need as many labels, at least one; found shapes {tuple(images.shape)} and "
            f"{tuple(labels.shape)}."
        )
    if not images.is_floating_point():
        raise ValueError(
            f"The {name} must be what the network takes, normalised floats; found {images.dtype}. Normalise "
            "them as in training, or build them with `from_split`."
        )
    check_finite(images, name)
    check_labels(labels, 2**31 if classes is None else classes, f"labels of the {name}")


def _normalised(part: Part, train: Part) -> tuple[Tensor, Tensor]:
    mean, std = (value.view(1, -1, 1, 1) for value in normalisation(train))
    pixels = part.in_memory()
    unit = 255.0 if pixels.dtype == torch.uint8 else 1.0
    return (pixels.float() / unit - mean) / std, part.labels
