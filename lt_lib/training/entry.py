"""Checks of a training: once on entry, and once an epoch."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lt_lib._checks import check_finite
from lt_lib.training.pixels import Images, check_channels


def check_part(model: nn.Module, part: Images) -> None:
    """Refuse images that the model cannot be trained on (reads values: call it once on entry).

    Raises:
        ValueError: no images, not one label an image, channels that do not fit, or pixels not finite.
    """
    if len(part.labels) == 0:
        raise ValueError("The training part holds no images; each class needs at least 1.")
    check_channels(model, part.images)
    if len(part.labels) != len(part.images):
        raise ValueError(
            f"The training part must hold one label an image; found {len(part.images)} images and "
            f"{len(part.labels)} labels."
        )
    if part.images.is_floating_point():
        check_finite(part.images, "images")


def check_class_counts(loss: nn.Module, labels: Tensor, classes: int) -> None:
    """Refuse a loss whose class counts are not those of `labels` (n,), checked before to be in 0..classes-1.

    A loss without `class_counts`, or whose `class_counts` is None, passes.

    Raises:
        ValueError: the numbers of classes differ, or the first class whose count does.
    """
    own = labels.cpu().bincount(minlength=classes)
    for module in loss.modules():
        counts: Any = getattr(module, "class_counts", None)
        if counts is None:
            continue
        counts = torch.as_tensor(counts).cpu()
        if len(counts) != classes:
            found = f"{len(counts)} classes, but the network gives {classes} logits"
        elif bool((counts != own).any()):
            c = int((counts != own).nonzero()[0, 0])
            found = f"{int(counts[c])} images of class {c}, but the labels hold {int(own[c])}"
        else:
            continue
        raise ValueError(
            f"The loss was built for {found}. Build it from `labels.bincount()` of the training part; where "
            "they are meant to differ, as for part of the images, set `loss.class_counts = None`."
        )


def check_callbacks(callbacks: Iterable[Any]) -> tuple[Any, ...]:
    """Return the callbacks as a tuple, so that an iterator serves every epoch.

    Raises:
        ValueError: one of them has no method `on_epoch_end`, or is a class.
    """
    if not isinstance(callbacks, Iterable):
        raise ValueError(
            f"`callbacks` must be a list of callbacks; found a {type(callbacks).__name__}. Pass `[callback]`."
        )
    known = tuple(callbacks)
    for callback in known:
        if isinstance(callback, type) or not callable(getattr(callback, "on_epoch_end", None)):
            found = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
            raise ValueError(
                f"`callbacks` must be objects with a method `on_epoch_end(epoch, trainer)`; found {found}. "
                "Give yours one, as `lt_lib.training.Recorder` has."
            )
    return known


@contextmanager
def enough_values(model: nn.Module, smallest: int) -> Iterator[None]:
    """Check, while one image goes through the model in eval mode, that batch normalisation has variances.

    Raises:
        ValueError: in a batch of `smallest` images a layer would have one value a channel.
    """

    def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        values = inputs[0].numel() // inputs[0].shape[1]  # of one image, a channel
        if values * smallest < 2:
            raise ValueError(
                "Batch normalisation needs two values a channel, but a layer has one position an image and "
                "a batch would hold one image. Train on two images or more with `batch` of 2 or more, or on "
                "larger images."
            )

    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_not_finite(model: nn.Module) -> str | None:
    """Return the name of the first parameter or floating buffer with a NaN or infinite entry, or None.

    The device is waited for once, whatever the number of tensors.
    """
    tensors = {
        name: tensor
        for tensors in (model.named_parameters(), model.named_buffers())
        for name, tensor in tensors
        if tensor.is_floating_point() and tensor.numel()
    }
    if not tensors:
        return None
    good = torch.stack([torch.isfinite(tensor.detach()).all() for tensor in tensors.values()]).tolist()
    return next((name for name, fine in zip(tensors, good, strict=True) if not fine), None)
