"""Predictions of a network on a set of images, leaving the network as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice
from lt_lib.training.config import PRECISIONS
from lt_lib.training.loader import in_order
from lt_lib.training.numerics import autocast
from lt_lib.training.pixels import Images, Normaliser, check_channels, input_dtype


@dataclass(frozen=True)
class Predictions:
    """What a network says about n images, on the CPU, float32."""

    logits: Tensor  # (n, C)
    features: Tensor  # (n, d), input of the head; (n, 0) for a model without `features` and `head`
    labels: Tensor  # (n,) int64

    @property
    def classes(self) -> Tensor:
        """The most likely class of each image (n,), int64."""
        return self.logits.argmax(1)

    def cross_entropy(self) -> Tensor:
        """Plain cross-entropy of each image (n,), in nats."""
        return nn.functional.cross_entropy(self.logits, self.labels, reduction="none")


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, without gradients; then give each its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(
    model: nn.Module,
    part: Images,
    normalise: tuple[Any, Any],
    batch: int = 1000,
    precision: str = "float32",
    memory_format: str = "contiguous",
    workers: int = 0,
) -> Predictions:
    """Return logits and features of all images of `part`, in its order, in eval mode, not augmented.

    Batches only bound the memory: each image counts once, whatever the size of the last batch. Parameters,
    buffers, modes, gradients and random state are left as they were.

    Args:
        model: on any device, float32 or float64; its head's input is kept where it has `features(x)` and
            `head`.
        part: images (n, ch, H, W) and labels (n,).
        normalise: (mean (ch,), std (ch,)) of pixels in 0..1, from the training part.
        batch: images at once.
        precision: "float32", or "bfloat16" for autocast.
        memory_format: "contiguous" or "channels_last".
        workers: processes that read images from files; 0 reads them here.

    Raises:
        ValueError: the part is empty, `batch` is below 1, channels do not fit the network, its parameters
            are of half precision, or `precision` or `memory_format` is unknown.
    """
    check_choice(precision, PRECISIONS, "precision")
    if len(part.labels) == 0 or batch < 1:
        raise ValueError(
            f"`evaluate` needs images and a batch of 1 or more; found {len(part.labels)} and {batch}."
        )
    check_channels(model, part.images)
    device = _device_of(model)
    normaliser = Normaliser.build(normalise, part.images, device, memory_format, input_dtype(model))
    with evaluation(model), autocast(device, precision):
        outputs = [
            _forward(model, normaliser(pixels.to(device))) for pixels in in_order(part.images, batch, workers)
        ]
    logits, features = (torch.cat([output[i] for output in outputs]).float().cpu() for i in (0, 1))
    return Predictions(logits, features, part.labels.cpu())


def _forward(model: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    if hasattr(model, "features") and hasattr(model, "head"):
        features = model.features(inputs)
        return model.head(features), features
    logits = model(inputs)
    return logits, logits.new_zeros(len(logits), 0)


def _device_of(model: nn.Module) -> torch.device:
    tensor = next(iter(model.parameters()), None)
    return torch.device("cpu") if tensor is None else tensor.device
