"""What an inspection found, and the sentences that tell it."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lt_lib.data.counts import Imbalance
from lt_lib.data.names import readable

_NAMED = 3  # images or classes named in a sentence


@dataclass(frozen=True)
class Picture:
    """One image, where it was found."""

    name: str  # path within its folder, or "train image 5" of an array
    part: str  # "train", "calibration" or "test"
    label: int  # 0..C-1
    fault: str = ""  # why it cannot be used, where it cannot


@dataclass(frozen=True)
class Inspection:
    """What was found; printed, it is a summary of a few lines. Images are equal if their pixels are.

    Equal means after decoding, resizing and cropping: what a network cannot tell apart.
    """

    name: str
    class_names: tuple[str, ...]  # (C,)
    counts: Mapping[str, NDArray[np.int64]]  # usable images of each class (C,), by part
    imbalance: Imbalance | None  # of the training part; None where a class has no usable training image
    unusable: tuple[Picture, ...]  # files that are no whole image, pixels that are NaN or infinite
    equal: tuple[tuple[Picture, ...], ...]  # groups of equal images, each of at least two
    constant: tuple[Picture, ...]  # every pixel of one colour
    torn: Mapping[str, int]  # groups with images in both parts, such as "train, test": how many
    sides: Mapping[tuple[int, int], int]  # images by (width, height), most frequent first
    modes: Mapping[str, int]  # images by mode of their file or type of their array, most frequent first
    examples: tuple[Tensor, ...]  # (C,) of (k, ch, S, S) uint8 or float32, k may be 0
    turned: tuple[Picture, ...] = ()  # viewers show them turned or mirrored, by their EXIF data

    @property
    def conflicting(self) -> tuple[tuple[Picture, ...], ...]:
        """The groups of equal images that bear several labels: at most one of them can be right."""
        return tuple(group for group in self.equal if len({one.label for one in group}) > 1)

    @property
    def leaks(self) -> tuple[tuple[Picture, ...], ...]:
        """The groups of equal images that lie in several parts: tested on what was learned."""
        return tuple(group for group in self.equal if len({one.part for one in group}) > 1)

    @property
    def small_classes(self) -> tuple[int, ...]:
        """Classes with fewer than three usable images: too few to learn, calibrate and test."""
        total = np.sum(list(self.counts.values()), axis=0)
        return tuple(int(c) for c in np.flatnonzero(total < 3))

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Groups of class names that differ in case, blanks, forms of letters or leading zeros alone."""
        groups: dict[str, list[str]] = {}
        for name in self.class_names:
            groups.setdefault(_skeleton(name), []).append(name)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @property
    def findings(self) -> tuple[str, ...]:
        """What deserves a look, one sentence or two each: what was found, where, and the way out."""
        return tuple(readable(sentence) for look in _LOOKS for sentence in look(self))

    def __str__(self) -> str:
        return "\n".join([*_overview(self), *(f"- {sentence}" for sentence in self.findings)])


def _skeleton(name: str) -> str:
    bare = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    return re.sub(r"(?<!\d)0+(?=\d)", "", bare)


def _overview(found: Inspection) -> list[str]:
    parts = ", ".join(f"{int(counts.sum())} {part}" for part, counts in found.counts.items())
    lines = [f"{found.name}: {len(found.class_names)} classes; usable images: {parts}"]
    if found.imbalance is not None:
        i = found.imbalance
        lines.append(
            f"{i.smallest} to {i.largest} training images a class: imbalance {i.factor:.3g}, "
            f"Gini {i.gini:.2f}, as uneven as {i.effective_classes:.1f} equal classes"
        )
    sides = [f"{width} x {height} ({n})" for (width, height), n in found.sides.items()]
    lines.append(f"width x height: {_listed(sides)}; modes: {_listed(_counted(found.modes))}")
    return lines


def _unusable(found: Inspection) -> Iterable[str]:
    if found.unusable:
        named = _listed([f"`{one.name}` ({one.fault})" for one in found.unusable])
        yield (
            f"{_images(len(found.unusable))} cannot be used: {named}. Fetch them again, or go on without "
            "them."
        )


def _without_images(found: Inspection) -> Iterable[str]:
    if len(found.class_names) == 1:
        yield f"There is one class, `{found.class_names[0]}`, so nothing to tell apart. Add another class."
    for part, counts in found.counts.items():
        empty = [found.class_names[c] for c in np.flatnonzero(counts == 0)]
        if empty and part == "train":
            yield f"No usable training image in {_classes(empty)}. Add images, or leave the class out."
        elif empty:
            yield f"No {part} image in {_classes(empty)}: its accuracy there is unknown."


def _alike(found: Inspection) -> Iterable[str]:
    if found.alike:
        told = _listed([" and ".join(f"`{name}`" for name in group) for group in found.alike])
        yield (
            f"Class names that differ in case, blanks or leading zeros alone: {told}. If they mean the same "
            "class, give it one name."
        )


def _turned(found: Inspection) -> Iterable[str]:
    if found.turned:
        named = _listed([f"`{one.name}`" for one in found.turned])
        yield (
            f"{_images(len(found.turned))} that viewers show turned or mirrored, by EXIF data that are not "
            f"heeded here: {named}. Save them upright (`PIL.ImageOps.exif_transpose`) if that matters."
        )


def _conflicts(found: Inspection) -> Iterable[str]:
    if found.conflicting:
        group = found.conflicting[0]
        told = " = ".join(f"`{one.name}` (`{found.class_names[one.label]}`)" for one in group[:_NAMED])
        yield (
            f"Equal images with several labels in {_groups(found.conflicting)}, such as {told}. At most one "
            "label is right: mend it, or leave the images out."
        )


def _leaks(found: Inspection) -> Iterable[str]:
    if found.leaks:
        group = found.leaks[0]
        told = " = ".join(f"`{one.name}`" for one in _one_a_part(group))
        yield (
            f"Equal images in several parts in {_groups(found.leaks)}, such as {told}: what was learned "
            "is tested. `partition` leaves the training copies out."
        )


def _copies(found: Inspection) -> Iterable[str]:
    told_before = {*found.leaks, *found.conflicting}
    within = [group for group in found.equal if group not in told_before]
    if within:
        told = " = ".join(f"`{one.name}`" for one in within[0][:_NAMED])
        extra = sum(len(group) - 1 for group in within)
        yield (
            f"{_images(extra)} too many, copies of others, such as {told}. `partition` keeps copies in one "
            "part; they count more than once in training."
        )


def _constants(found: Inspection) -> Iterable[str]:
    if found.constant:
        named = _listed([f"`{one.name}`" for one in found.constant])
        yield f"{_images(len(found.constant))} of one colour alone: {named}. Look at them."


def _small(found: Inspection) -> Iterable[str]:
    names = [found.class_names[c] for c in found.small_classes]
    if names:
        yield (
            f"Fewer than three usable images in {_classes(names)}: too few to learn, calibrate and test. Add "
            "images, merge the class with another, or read its accuracy as unknown."
        )


def _uneven_test(found: Inspection) -> Iterable[str]:
    counts = found.counts.get("test", np.empty(0, dtype=np.int64))
    present = counts[counts > 0]
    if len(present) and present.max() > present.min():
        yield (
            f"The test part is uneven too, {present.min()} to {present.max()} images a class: plain accuracy "
            "is what use would show if classes come as often there, balanced accuracy counts all "
            "classes alike."
        )


def _torn(found: Inspection) -> Iterable[str]:
    for parts, groups in found.torn.items():
        yield (
            f"Groups with images in two parts ({parts}): {groups}, so that what was learned is tested. Mend "
            "the column `split`, or leave it out and the images will be split by groups."
        )


_LOOKS: tuple[Callable[[Inspection], Iterable[str]], ...] = (
    *(
        _unusable,
        _without_images,
        _alike,
        _turned,
        _conflicts,
        _leaks,
        _copies,
        _constants,
        _small,
        _uneven_test,
        _torn,
    ),
)


def _one_a_part(group: tuple[Picture, ...]) -> list[Picture]:
    return list({one.part: one for one in reversed(group)}.values())[::-1]


def _counted(modes: Mapping[str, int]) -> list[str]:
    return [f"{mode} ({n})" for mode, n in modes.items()]


def _images(n: int) -> str:
    return f"{n} image{'' if n == 1 else 's'}"


def _groups(equal: tuple[tuple[Picture, ...], ...]) -> str:
    return f"{len(equal)} group{'' if len(equal) == 1 else 's'}"


def _classes(names: list[str]) -> str:
    return f"{len(names)} class{'' if len(names) == 1 else 'es'} ({_listed([f'`{n}`' for n in names])})"


def _listed(texts: list[str]) -> str:
    rest = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + rest
