"""The batches of an epoch: order, views and partners, from (seed, epoch) alone."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lt_lib.training import augment
from lt_lib.training.config import TrainConfig, check_number
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
    """Batches of a part for a recipe, normalised and on the device."""

    def __init__(self, part: Images, config: TrainConfig, seed: int, normaliser: Normaliser) -> None:
        self.config, self.seed, self.normaliser = config, seed, normaliser
        self.device = normaliser.scale.device
        self.bounds = batch_bounds(len(part.labels), config.batch)
        self._images, self._labels = part.images, part.labels.cpu()
        self._padded: dict[int, Tensor] = {}  # by width of the border

    def batches(self, epoch: int, recipe: Recipe) -> Iterator[Batch]:
        """Yield the batches of `epoch` (from 0), the same ones whatever was asked before."""
        augments = recipe.augments(self.config)
        labels, views = self._sequence(epoch, self.config.sampling, augments, (ORDER, AUGMENT))
        if recipe.partner is None:
            yield from (Batch(*pair) for pair in zip(views, labels, strict=True))
            return
        others, other_views = self._sequence(
            epoch, recipe.partner, augments, (PARTNER_ORDER, PARTNER_AUGMENT)
        )
        yield from (Batch(*four) for four in zip(views, labels, other_views, others, strict=True))

    def _sequence(
        self, epoch: int, sampling: str, augments: tuple[str, ...], purposes: tuple[int, int]
    ) -> tuple[Iterator[Tensor], Iterator[tuple[Tensor, ...]]]:
        """Return one epoch's labels and views, batch by batch."""
        places = draw_places(self._labels, sampling, epoch_generator(self.seed, epoch, purposes[0]))
        labels = self._labels[places.images].to(self.device)
        views = [
            self._view(places, name, epoch_generator(self.seed, epoch, purposes[1], number))
            for number, name in enumerate(augments)
        ]
        return (labels[start:stop] for start, stop in self.bounds), zip(*views, strict=True)

    def _view(self, places: Places, name: str, generator: torch.Generator) -> Iterator[Tensor]:
        padded = self._on_device(name)
        choices = augment.draw(len(self._labels), name, generator).to(self.device)
        images, keys = places.images.to(self.device), places.keys.to(self.device)
        for start, stop in self.bounds:
            pixels = augment.take(padded, images[start:stop], choices, name, keys[start:stop])
            yield self.normaliser(pixels)

    def _on_device(self, name: str) -> Tensor:
        border = augment.PADDING[name]
        if border not in self._padded:
            self._padded[border] = augment.pad(self._images, name).to(self.device)
        return self._padded[border]
