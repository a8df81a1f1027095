"""Batches that are decoded or augmented picture by picture, in worker processes if asked for."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lt_lib.training import augment
from lt_lib.training.pictures import PICTURES, as_picture, rendered
from lt_lib.training.sampling import Places
from lt_lib.training.seeding import epoch_generator, epoch_seed

Bounds = list[tuple[int, int]]


@dataclass(frozen=True)
class View:
    """One augmentation of an epoch's images; everything in it derives from the numbers in `stream`."""

    name: str  # of the augmentation
    stream: tuple[int, int, int, int]  # seed, epoch, purpose, number of the view


class Pictures(Dataset[Any]):
    """The batches of one epoch by number: a list of pixels (B, ch, H, W), one entry a view.

    What batch k holds depends on k alone, so that neither order nor number of the workers matters. An error
    is returned rather than raised, since a worker would bury its sentence in a traceback.
    """

    def __init__(self, images: Any, places: Places, bounds: Bounds, views: list[View]) -> None:
        self.images, self.places, self.bounds, self.views = images, places, bounds, views
        self._choices = {
            view: augment.draw(len(images), view.name, epoch_generator(*view.stream))
            for view in views
            if view.name not in PICTURES
        }

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, number: int) -> list[Tensor] | Exception:
        if not 0 <= number < len(self.bounds):
            raise IndexError(number)
        start, stop = self.bounds[number]
        batch = _Read(self.images, self.places.images[start:stop])
        keys = self.places.keys[start:stop]
        try:
            return [self._view(view, batch, keys) for view in self.views]
        except (ValueError, OSError) as error:
            return error

    def _view(self, view: View, batch: "_Read", keys: Tensor) -> Tensor:
        if view.name not in PICTURES:
            rows = torch.arange(len(keys))
            return augment.take(
                augment.pad(batch.pixels, view.name), rows, self._choices[view], view.name, keys
            )
        whole = batch.from_files and view.name != "autoaugment"
        seeds = [epoch_seed(*view.stream, key) for key in keys.tolist()]
        pictures = batch.whole if whole else [as_picture(pixels) for pixels in batch.pixels]
        pixels = rendered(pictures, seeds, view.name, int(self.images.shape[-1]), whole)
        return pixels.float() / 255 if self.images.is_floating_point() else pixels


class _Read:
    """The images of a batch, read at most once each way."""

    def __init__(self, images: Any, positions: Tensor) -> None:
        self.images, self.positions = images, positions
        self.from_files = not isinstance(images, Tensor)
        self._pixels: Tensor | None = None
        self._whole: list[Any] | None = None

    @property
    def pixels(self) -> Tensor:
        """Pixels (B, ch, S, S), from files resized and cropped."""
        if self._pixels is None:
            self._pixels = self.images[self.positions]
        return self._pixels

    @property
    def whole(self) -> list[Any]:
        """Whole pictures, of files only."""
        if self._whole is None:
            self._whole = [self.images.open(position) for position in self.positions.tolist()]
        return self._whole


def load_batches(batches: Pictures, workers: int) -> Iterator[list[Tensor]]:
    """Yield the batches in order, made by `workers` processes (0: by this one), whatever their number.

    Raises:
        ValueError: an image that cannot be read or augmented; it is named.
        FileNotFoundError: an image file that has gone.
    """
    # its own generator: a loader without one would draw from the global state
    loader = DataLoader(batches, batch_size=None, num_workers=workers, generator=torch.Generator())
    with warnings.catch_warnings():  # workers are forked before they compute; Python 3.12 warns of threads
        warnings.simplefilter("ignore", DeprecationWarning)
        arriving = iter(loader)
    for batch in arriving:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def in_order(images: Any, batch: int, workers: int) -> Iterator[Tensor]:
    """Yield the images as they are, `batch` at a time: from memory, or from files by worker processes."""
    if isinstance(images, Tensor):
        yield from images.split(batch)
        return
    every = torch.arange(len(images))
    bounds = [(start, min(start + batch, len(images))) for start in range(0, len(images), batch)]
    views = [View("none", (0, 0, 0, 0))]
    for (pixels,) in load_batches(Pictures(images, Places(every, every), bounds, views), workers):
        yield pixels
