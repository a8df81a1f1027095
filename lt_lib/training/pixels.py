"""Pixels to network inputs, in the same way in training and evaluation."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice, check_finite

MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class Images(Protocol):
    """What training and evaluation need of a `lt_lib.data.Part`."""

    @property
    def images(self) -> Any:
        """Pixels (n, ch, H, W), uint8 or float32 in 0..1; or files (`lt_lib.data.ImageFiles`)."""

    @property
    def labels(self) -> Tensor:
        """Class numbers (n,) int64."""


@dataclass(frozen=True)
class Normaliser:
    """Turns stored pixels into (x - mean) / std; x is in 0..1 (uint8 / 255, floats as they are)."""

    scale: Tensor  # (1, ch, 1, 1) in the dtype of the inputs
    shift: Tensor  # (1, ch, 1, 1) likewise
    memory_format: torch.memory_format

    @classmethod
    def build(
        cls,
        normalise: tuple[Any, Any],
        images: Any,
        device: torch.device,
        memory_format: str = "contiguous",
        dtype: torch.dtype = torch.float32,
    ) -> "Normaliser":
        """Prepare for images like `images` (n, ch, H, W); `normalise` is (mean (ch,), std (ch,)).

        `dtype` is that of the inputs, see `input_dtype`.

        Raises:
            ValueError: mean or std does not hold one finite number a channel, a std is not positive, or
                `memory_format` is unknown.
        """
        check_choice(memory_format, MEMORY_FORMATS, "memory_format")
        mean, std = (torch.as_tensor(value, dtype=torch.float64).reshape(-1) for value in normalise)
        channels = images.shape[1]
        if len(mean) != channels or len(std) != channels:
            raise ValueError(
                f"`normalise` must hold a mean and a std for each of the {channels} channels of the images; "
                f"found {len(mean)} and {len(std)}. Take them from `lt_lib.data.normalisation(part)`."
            )
        check_finite(mean, "normalise[0]")
        check_finite(std, "normalise[1]")
        if not bool((std > 0).all()):
            raise ValueError(
                f"`normalise` holds a standard deviation that is not positive: {std.tolist()}. "
                "Drop channels that are constant over the training part."
            )
        unit = 255.0 if images.dtype == torch.uint8 else 1.0
        scale, shift = (1 / (unit * std)).to(dtype), (mean / std).to(dtype)
        return cls(
            scale.view(1, -1, 1, 1).to(device),
            shift.view(1, -1, 1, 1).to(device),
            MEMORY_FORMATS[memory_format],
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Return (B, ch, H, W) in the dtype of `scale`."""
        return (
            (images.to(self.scale.dtype) * self.scale)
            .sub_(self.shift)
            .contiguous(memory_format=self.memory_format)
        )


def input_dtype(model: nn.Module) -> torch.dtype:
    """Return the floating type of the model's parameters, which its inputs need: float32 or float64.

    Raises:
        ValueError: the parameters are of half precision.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"The network's parameters must be float32 or float64; found {dtype}. Convert it with "
            '`model.float()`; for bfloat16 arithmetic pass `precision="bfloat16"`.'
        )
    return dtype


def check_channels(model: nn.Module, images: Any) -> None:
    """Refuse images whose channels do not fit the model's first convolution.

    Raises:
        ValueError: the numbers of channels differ.
    """
    if images.ndim != 4:
        raise ValueError(f"Images must be (n, ch, H, W); found shape {tuple(images.shape)}.")
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels != images.shape[1]:
        raise ValueError(
            f"The images have {images.shape[1]} channel(s), but the network's first layer takes "
            f"{first.in_channels}. Build the network with `channels={images.shape[1]}`."
        )
