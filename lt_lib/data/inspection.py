"""A look at a reader's own data before anything is trained: counts, faults, copies, examples."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lt_lib.data.catalogue import load
from lt_lib.data.counts import imbalance_statistics
from lt_lib.data.csv_list import list_rows
from lt_lib.data.files import ImageFiles
from lt_lib.data.findings import Inspection, Picture
from lt_lib.data.folder import list_images
from lt_lib.data.listing import Listing
from lt_lib.data.npz import read_npz
from lt_lib.data.pairs import PairSource
from lt_lib.data.scan import Images, Seen, scan
from lt_lib.data.source import Part, Source

_LISTS: dict[str, Callable[..., Listing]] = {"folder": list_images, "csv": list_rows}
_EXAMPLE_BYTES = 2**26  # most that examples may take


@dataclass(frozen=True)
class _Material:
    """Images of one part as they are looked at."""

    part: str
    images: Images
    labels: NDArray[np.int64]
    index: NDArray[np.int64]
    groups: NDArray[np.int64] | None

    def picture(self, i: int, fault: str = "") -> Picture:
        images = self.images
        name = images.names[i] if isinstance(images, ImageFiles) else f"{self.part} image {self.index[i]}"
        return Picture(name, self.part, int(self.labels[i]), fault)


def inspect(
    source: str | Source | PairSource,
    root: str | Path | None = None,
    size: int = 64,
    examples: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Look at every image once and tell what is there; nothing is refused that can be told instead.

    Images are looked at one by one and let go of: memory holds 16 bytes and some notes for each, and the
    examples. The archive of an `npz:` source lies in memory as a whole.

    Args:
        source: a name for `load`, or what `load` returned. Of `folder:` and `csv:` names, files that cannot
            be decoded are told, as are NaN images of an `npz:`; a loaded source has none.
        root: see `load`.
        size: height and width at which files are compared and shown.
        examples: images of each class to keep, spread over the class; fewer where they would take more than
            64 MiB in all.
        progress: called with the numbers of images seen and to see.

    Raises:
        FileNotFoundError: there are no such data.
        ValueError: they are not laid out as `load` asks, apart from single images.
    """
    name, class_names, materials, lost = _materials(source, root, size)
    seen: dict[str, list[Seen]] = {}
    total = sum(len(material.labels) for material in materials)
    for material in materials:
        done = sum(len(part) for part in seen.values())
        seen[material.part] = scan(material.images, _counted(progress, done, total))
    whole = [(m, i, one) for m in materials for i, one in enumerate(seen[m.part]) if not one.fault]
    bad = [m.picture(i, one.fault) for m in materials for i, one in enumerate(seen[m.part]) if one.fault]
    counts = {m.part: _counts(m, seen[m.part], len(class_names)) for m in materials}
    learned = counts["train"]
    return Inspection(
        name,
        class_names,
        counts,
        imbalance_statistics(learned) if (learned > 0).all() else None,
        (*lost, *bad),
        tuple(_equal(whole)),
        tuple(m.picture(i) for m, i, one in whole if one.constant),
        _torn(materials),
        dict(Counter(one.sides for _, _, one in whole).most_common()),
        dict(Counter(one.mode for _, _, one in whole).most_common()),
        _examples(materials[0], seen["train"], len(class_names), examples),
        tuple(m.picture(i) for m, i, one in whole if one.turned),
    )


def _counted(
    progress: Callable[[int, int], None] | None, done: int, total: int
) -> Callable[[int], None] | None:
    return None if progress is None else lambda n: progress(done + n, total)


def _materials(
    source: str | Source | PairSource, root: str | Path | None, size: int
) -> tuple[str, tuple[str, ...], list[_Material], list[Picture]]:
    lost: list[Picture] = []
    if isinstance(source, str):
        kind, _, path = source.partition(":")
        if kind in _LISTS and path:
            return (*_of_listing(_LISTS[kind](path, root), size), lost)
        if kind == "npz" and path:
            source, dropped = read_npz(path, root, "leave out")
            lost = [
                Picture(f"{part} image {i}", part, int(label), "NaN or infinite pixels")
                for part, labels in dropped.items()
                for i, label in labels.items()
            ]
        else:
            source = load(source, root)
    if isinstance(source, PairSource):
        raise ValueError(
            f"`{source.name}` is composed when it is split; there is nothing to inspect before. Inspect "
            f"`{source.singles.name}` instead."
        )
    parts = {"train": source.train, "calibration": source.calibration, "test": source.test}
    found = [_of_part(name, part) for name, part in parts.items() if part is not None]
    return source.name, source.class_names, found, lost


def _of_listing(listing: Listing, size: int) -> tuple[str, tuple[str, ...], list[_Material]]:
    found = []
    for part, files in listing.parts.items():
        images, index = ImageFiles(listing.base, files.names, size), np.arange(len(files.labels))
        found.append(_Material(part, images, files.labels, index, files.groups))
    return listing.name, listing.class_names, found


def _of_part(name: str, part: Part) -> _Material:
    groups = None if part.groups is None else part.groups.numpy()
    return _Material(name, part.images, part.labels.numpy(), part.index.numpy(), groups)


def _counts(material: _Material, seen: list[Seen], classes: int) -> NDArray[np.int64]:
    usable = np.array([not one.fault for one in seen], dtype=bool)
    return np.bincount(material.labels[usable], minlength=classes).astype(np.int64)


def _equal(whole: list[tuple[_Material, int, Seen]]) -> Iterator[tuple[Picture, ...]]:
    groups: dict[bytes, list[tuple[_Material, int]]] = {}
    for material, i, one in whole:
        groups.setdefault(one.digest, []).append((material, i))
    for group in groups.values():
        if len(group) > 1:
            yield tuple(material.picture(i) for material, i in group)


def _torn(materials: list[_Material]) -> dict[str, int]:
    held = {m.part: set(m.groups.tolist()) for m in materials if m.groups is not None}
    names = list(held)
    pairs = {f"{a}, {b}": len(held[a] & held[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
    return {pair: torn for pair, torn in pairs.items() if torn}


def _examples(material: _Material, seen: list[Seen], classes: int, wanted: int) -> tuple[Tensor, ...]:
    each = material.images.shape[1:].numel() * (4 if material.images.is_floating_point() else 1)
    usable = np.array([not one.fault for one in seen], dtype=bool)
    order = np.argsort(material.labels, kind="stable")
    order = order[usable[order]]
    ends = np.searchsorted(material.labels[order], np.arange(classes + 1))
    left, shown = _EXAMPLE_BYTES // each, []
    for c in range(classes):
        members = order[ends[c] : ends[c + 1]]
        k = min(wanted, len(members), max(left // (classes - c), 0))
        where = members[np.linspace(0, len(members) - 1, k).astype(np.int64)] if k else members[:0]
        left -= k
        shown.append(material.images[torch.from_numpy(where)])
    return tuple(shown)
