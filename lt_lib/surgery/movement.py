"""A network at displaced weights: moved in place and exactly back, or evaluated without being touched."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_finite, check_labels, check_whole
from lt_lib.collapse.metrics import as_double
from lt_lib.curvature.guard import unwrapped
from lt_lib.curvature.problem import Problem, select

Params = str | Sequence[str] | None
PASS = 64 * 3 * 32 * 32  # input numbers a pass that keep activations near the processor


@contextmanager
def displaced(model: nn.Module, offset: Tensor, params: Params = None) -> Iterator[nn.Module]:
    """Run the block with `offset` added to the model's weights in place; afterwards they are what they were.

    Weights are restored from copies, bit for bit, after an exception too: a subtraction would leave rounding.

    Args:
        model: any module; what the block changes in its chosen parameters is undone as well.
        offset: (P,) in the order of `named_parameters()`.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.

    Raises:
        ValueError: an offset of another length or not finite, or as `lt_lib.curvature.problem.select`.
    """
    chosen = list(select(unwrapped(model), params).values())
    size = sum(p.numel() for p in chosen)
    check_rows(offset[None], size, "offset")
    with torch.inference_mode(False), torch.no_grad():
        before = [p.detach().clone() for p in chosen]
        pieces = offset.split([p.numel() for p in chosen])
    try:
        with torch.no_grad():
            for p, piece in zip(chosen, pieces, strict=True):
                p.add_(piece.view_as(p).to(p))
        yield model
    finally:
        with torch.no_grad():
            for p, old in zip(chosen, before, strict=True):
                p.copy_(old)


class Evaluator:
    """Logits of given images at displaced copies of a model's weights; the model itself is only called.

    Weights and images are kept in channels-last order where the model takes it, which convolutions prefer:
    logits then equal those of the plain model up to rounding.

    Args:
        model: maps images (B, ...) to logits (B, C).
        images: (n, ...) as the network takes them, normalised.
        labels: (n,).
        classes: C; None: as many as there are logits.
        params: as in `displaced`.
        batch: images a pass; None: `usual_batch`.

    Attributes:
        classes: C.
        labels: (n,) int64.
        spent: images evaluated so far.

    Raises:
        ValueError: images, labels or a model that `lt_lib.curvature.problem.Problem` refuses, labels outside
            0..C-1, or a class without an image.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        classes: int | None = None,
        params: Params = None,
        batch: int | None = None,
    ) -> None:
        if batch is not None:
            check_whole(batch, "batch")
        for name, value in (("images", images), ("labels", labels)):
            if not isinstance(value, Tensor) or value.ndim == 0:
                raise ValueError(
                    f"`{name}` must be a tensor, one entry an image; found {type(value).__name__}. Convert "
                    "it with `torch.as_tensor`."
                )
        try:
            self.spent = 0
            self.problem = Problem(model, images, labels, params=params, normaliser=1.0, channels_last=True)
            self.batch = batch or usual_batch(images)
            logits = self.logits(index=torch.zeros(1, dtype=torch.int64))
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"`model` fails on `images` of shape {tuple(images.shape)}: {str(error).splitlines()[0]}. "
                "Pass images of the size and channels that it was trained on."
            ) from error
        self.spent = 0
        if logits.ndim != 2:
            raise ValueError(f"`model` must return logits (B, C); found shape {tuple(logits.shape)}.")
        self.classes = logits.shape[1]
        if classes not in (None, self.classes):
            raise ValueError(f"`classes` must be the {self.classes} logits of `model`; found {classes}.")
        self.labels = check_labels(self.problem.labels, self.classes)
        self.counts = torch.bincount(self.labels, minlength=self.classes).double().cpu()
        absent = (self.counts == 0).nonzero().flatten().tolist()
        if absent:
            raise ValueError(
                f"Class {absent[0]} has no image in `labels` ({len(absent)} of {self.classes} classes have "
                "none), so its accuracy is undefined. Add images of it."
            )

    def __len__(self) -> int:
        """Return n."""
        return len(self.problem.images)

    def logits(self, offset: Tensor | None = None, index: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """Return logits (m, C) at the weights plus `scale * offset`, of all images or those at `index`."""
        theta = self.problem.theta
        if offset is not None:
            parts = self.problem.split(offset.to(theta[0]))
            theta = tuple(p.clone().add_(part, alpha=scale) for p, part in zip(theta, parts, strict=True))
        with self.problem.surroundings(), torch.no_grad():
            found = [self.problem.outputs(theta, images) for images in self.parts(index)]
        return torch.cat(found)

    def parts(self, index: Tensor | None) -> Iterator[Tensor]:
        """Yield the images at `index` (None: all), a batch at a time, and count them."""
        images = self.problem.images
        if index is None:
            self.spent += len(images)
            yield from images.split(self.batch)
            return
        self.spent += len(index)
        last = images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)
        for part in index.to(images.device).split(self.batch):
            taken = images[part]
            yield taken.contiguous(memory_format=torch.channels_last) if last else taken

    def correct(self, offset: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """Return which images are classified correctly (n,) at the weights plus `scale * offset`."""
        return correct(self.logits(offset, scale=scale), self.labels)

    def shares(self, values: Tensor) -> Tensor:
        """Return class means (..., C) float64 on the CPU of a value an image (..., n)."""
        rows = as_double(values)
        sums = rows.new_zeros(*rows.shape[:-1], self.classes)
        return sums.index_add_(-1, self.labels.to(rows.device), rows).cpu() / self.counts


def usual_batch(images: Tensor) -> int:
    """Return how many images to evaluate at once: 64 of 32 x 32 x 3, more of smaller ones, up to 1,024."""
    return max(64, min(1024, PASS // max(1, images[:1].numel())))


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return which rows (n,) have their largest logit (the first of equals) at the label, and all finite."""
    return logits.isfinite().all(1) & (logits.argmax(1) == labels)


def class_accuracy_at(
    model: nn.Module,
    offsets: Tensor,
    images: Tensor,
    labels: Tensor,
    classes: int | None = None,
    params: Params = None,
    batch: int | None = None,
) -> Tensor:
    """Return each class's accuracy (M, C) float64 in [0, 1] at the weights plus each offset.

    Eval mode; the model is left as it was. An image whose logits are not finite counts as wrong.

    Args:
        model: maps images (B, ...) to logits (B, C).
        offsets: (M, P) in the order of `named_parameters()`; a row of zeros gives the accuracy of the model.
        images: (n, ...) as the network takes them.
        labels: (n,) in 0..C-1, each class at least once.
        classes: C; None: as many as there are logits.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass; None: `usual_batch`.

    Raises:
        ValueError: offsets that do not fit or are not finite, or as `Evaluator`.
    """
    evaluator = Evaluator(model, images, labels, classes, params, batch)
    check_rows(offsets, evaluator.problem.size, "offsets")
    hits = [evaluator.correct(offset) for offset in offsets]
    return evaluator.shares(torch.stack(hits)) if hits else torch.zeros(0, evaluator.classes).double()


def check_rows(rows: Any, size: int, name: str) -> None:
    """Refuse what are no finite rows (M, size) of floats, one number a chosen parameter.

    Raises:
        ValueError: that is so.
    """
    floats = isinstance(rows, Tensor) and rows.is_floating_point()
    if not floats or rows.ndim != 2 or rows.shape[1] != size:
        found = (
            f"shape {tuple(rows.shape)} of {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        )
        raise ValueError(
            f"`{name}` must hold one number for each of the {size} chosen parameters, rows of {size} floats "
            f"in the order of `named_parameters()`; found {found}."
        )
    check_finite(rows, name)
