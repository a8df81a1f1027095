"""CIFAR-style residual networks (He et al. 2016, section 4.2) of any depth 6n + 2 and any width."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from lt_lib.nets._base import Classifier, Head, make_head


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm, and an option-A shortcut (subsample, pad with zero channels)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        extra = outputs - inputs
        # new channels go to both sides, as in the CIFAR ResNets that the long-tail literature compares
        self.widen = (0, 0, 0, 0, extra // 2, extra - extra // 2) if extra else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, H / stride, W / stride)."""
        out = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.widen is not None:
            x = pad(x, self.widen)
        return relu(out + x)


class ResNet(Classifier):
    """Three stages of n basic blocks at widths w, 2w, 4w and strides 1, 2, 2, then the mean over positions.

    Args:
        depth: 6n + 2.
        width: w, channels of the first stage; 16 is the usual CIFAR network.
        head: maps features (B, 4w) to logits (B, C).
        channels: of the images, 1 or 3 (any number works).

    Raises:
        ValueError: a depth that is not 6n + 2, a width below 1, or a head of another number of features.
    """

    def __init__(self, depth: int, width: int, head: Head, channels: int = 3) -> None:
        blocks = _blocks(depth)
        _check_sizes(width, channels)
        super().__init__(head, 4 * width, channels)
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stage1 = _stage(blocks, width, width, 1)
        self.stage2 = _stage(blocks, width, 2 * width, 2)
        self.stage3 = _stage(blocks, 2 * width, 4 * width, 2)
        self.head = head

    def _features(self, x: Tensor) -> Tensor:
        x = relu(self.bn(self.conv(x)))
        return self.stage3(self.stage2(self.stage1(x))).mean((2, 3))


def resnet(
    depth: int,
    width: int,
    classes: int,
    channels: int = 3,
    head: str = "linear",
    seed: int = 0,
    **head_options: Any,
) -> ResNet:
    """Return a CIFAR-style ResNet with the head "linear", "cosine" or "etf", initialised by `seed` alone.

    Convolutions start normal with variance 2 / fan_in (He et al. 2015), BatchNorm at 1 and 0. ResNet-20 and
    ResNet-32 of width 16 with 10 classes have 269,722 and 464,154 parameters. The global random state is
    neither used nor changed.

    Args:
        depth: 6n + 2 (8, 14, 20, 32, ...).
        width: channels of the first stage; the head sees 4 * width features.
        classes: C.
        channels: of the images.
        head: name of the head.
        seed: of all weights.
        head_options: `bias` (linear), `scale` (cosine, etf), `unit` and `batch_norm` (etf), `head_seed`.

    Raises:
        ValueError: an impossible depth or width, an unknown head, an option that the head does not have, or
            an ETF head with 4 * width < C - 1.
    """
    _check_sizes(width, channels)
    generator = torch.Generator().manual_seed(seed)
    made = make_head(head, 4 * width, classes, head_options, generator)
    # layers draw when they are built, from the global generator: give that back as it was
    with torch.random.fork_rng(devices=[]):
        net = ResNet(depth, width, made, channels)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
    return net


def _stage(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


def _check_sizes(width: int, channels: int) -> None:
    if width < 1 or channels < 1:
        raise ValueError(f"`width` and `channels` must be at least 1; found {width} and {channels}.")


def _blocks(depth: int) -> int:
    if depth < 8 or (depth - 2) % 6:
        near = max(8, 6 * round((depth - 2) / 6) + 2)
        raise ValueError(
            f"`depth` must be 6n + 2 (8, 14, 20, 26, 32, ...); found {depth}. The nearest is {near}."
        )
    return (depth - 2) // 6
