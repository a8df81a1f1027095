"""The batches of an epoch: order, views and partners, from (seed, epoch) alone."""

from collections.abc import Iterator

from torch import Tensor

from lt_lib._processes import current
from lt_lib.training import augment
from lt_lib.training.config import TrainConfig, check_number
from lt_lib.training.loader import Bounds, Pictures, View, load_batches
from lt_lib.training.pixels import Images, Normaliser
from lt_lib.training.recipes import Batch, Recipe
from lt_lib.training.sampling import Places, draw_places
from lt_lib.training.seeding import AUGMENT, ORDER, PARTNER_AUGMENT, PARTNER_ORDER, epoch_generator


def batch_bounds(images: int, batch: int) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch of an epoch: every image once, the short last batch kept.

    A last batch of a single image joins the batch before it: batch normalisation has no variance to divide by
    where a layer has one value a channel.

    Raises:
        ValueError: `images` or `batch` is below 1.
    """
    check_number(images, "images", 1, 2**63 - 1, whole=True)
    check_number(batch, "batch", 1, 2**63 - 1, whole=True)
    starts = list(range(0, images, batch))
    if len(starts) > 1 and batch > 1 and images - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], images], strict=True))


class Feed:
    """Batches of a part for a recipe, normalised and on the device.

    Images in memory whose augmentation only moves pixels lie on the device and are gathered there; files and
    the augmentations of `pictures` come through worker processes, to the same bits for any number of them. Of
    several processes that train together each reads its own rows of a batch; the others' are 0.
    """

    def __init__(self, part: Images, config: TrainConfig, seed: int, normaliser: Normaliser) -> None:
        self.config, self.seed, self.normaliser = config, seed, normaliser
        self.device = normaliser.scale.device
        self.bounds = batch_bounds(len(part.labels), config.batch)
        self._images, self._labels = part.images, part.labels.cpu()
        self._padded: dict[int, Tensor] = {}  # by width of the border

    def batches(self, epoch: int, recipe: Recipe, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` (from 0) from number `first` on, whatever was asked before."""
        bounds = self.bounds[first:]
        views, labels = self._sequence(epoch, self.config.sampling, recipe, (ORDER, AUGMENT), bounds)
        if recipe.partner is None:
            yield from (Batch(*two) for two in zip(views, labels, strict=True))
            return
        purposes = (PARTNER_ORDER, PARTNER_AUGMENT)
        others = self._sequence(epoch, recipe.partner, recipe, purposes, bounds)
        yield from (Batch(*four) for four in zip(views, labels, *others, strict=True))

    def _sequence(
        self, epoch: int, sampling: str, recipe: Recipe, purposes: tuple[int, int], bounds: Bounds
    ) -> tuple[Iterator[tuple[Tensor, ...]], Iterator[Tensor]]:
        """Return one epoch's views and labels, batch by batch."""
        places = draw_places(self._labels, sampling, epoch_generator(self.seed, epoch, purposes[0]))
        labels = self._labels[places.images].to(self.device)
        augments = enumerate(recipe.augments(self.config))
        views = [View(name, (self.seed, epoch, purposes[1], i)) for i, name in augments]
        reads = bounds if recipe.mixes_images else [_own(start, stop) for start, stop in bounds]
        return self._views(places, views, bounds, reads), (labels[start:stop] for start, stop in bounds)

    def _views(
        self, places: Places, views: list[View], bounds: Bounds, reads: Bounds
    ) -> Iterator[tuple[Tensor, ...]]:
        gathers = {view: self._gathered(places, view, bounds) for view in views if self._stays(view)}
        loaded = [view for view in views if view not in gathers]
        source = Pictures(self._images, places, reads, loaded)
        empty: list[list[Tensor]] = [[] for _ in bounds]
        arriving = load_batches(source, self.config.workers) if loaded else empty
        for (start, stop), (first, _), pixels in zip(bounds, reads, arriving, strict=True):
            rows = [_among(part, first - start, stop - start) for part in pixels]
            arrived = dict(zip(loaded, rows, strict=True))
            yield tuple(
                self.normaliser(arrived[view].to(self.device) if view in arrived else next(gathers[view]))
                for view in views
            )

    def _stays(self, view: View) -> bool:
        return isinstance(self._images, Tensor) and view.name in augment.PADDING

    def _gathered(self, places: Places, view: View, bounds: Bounds) -> Iterator[Tensor]:
        padded = self._on_device(view.name)
        choices = augment.draw(len(self._labels), view.name, epoch_generator(*view.stream)).to(self.device)
        images, keys = places.images.to(self.device), places.keys.to(self.device)
        for start, stop in bounds:
            yield augment.take(padded, images[start:stop], choices, view.name, keys[start:stop])

    def _on_device(self, name: str) -> Tensor:
        border = augment.PADDING[name]
        if border not in self._padded:
            self._padded[border] = augment.pad(self._images, name).to(self.device)
        return self._padded[border]


def _own(start: int, stop: int) -> tuple[int, int]:
    """Return this process's part of the batch start..stop; one image where it has none."""
    share = current().share(stop - start)
    first = min(start + share.start, stop - 1)
    return first, max(first + 1, start + share.stop)


def _among(rows: Tensor, at: int, size: int) -> Tensor:
    """Return `rows` from place `at` of a batch of `size`, which is 0 elsewhere."""
    if len(rows) == size:
        return rows
    batch = rows.new_zeros(size, *rows.shape[1:])
    batch[at : at + len(rows)] = rows
    return batch
