"""torchvision's ResNet-50 and ResNeXt-50 (32x4d) with this library's heads, for small and large images."""

from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice
from lt_lib.nets._base import Classifier, Head, check_channels, make_head

STEMS = ("imagenet", "small")
_BUILDERS = {"resnet50": "resnet50", "resnext50": "resnext50_32x4d"}  # names in torchvision.models
LARGE_ARCHS = tuple(_BUILDERS)
_DIM = 2048


class TorchvisionResNet(Classifier):
    """ResNet-50 (He et al. 2016) or ResNeXt-50 32x4d (Xie et al. 2017): torchvision's layers, 2048 features.

    Args:
        arch: "resnet50" or "resnext50".
        head: maps features (B, 2048) to logits (B, C).
        channels: of the images, 1 or 3 (any number works).
        stem: "imagenet", torchvision's 7 x 7 convolution of stride 2 and its max-pooling (a quarter of the
            side is left, for 224 pixels); "small", a 3 x 3 convolution of stride 1 and no pooling, for 32.

    Raises:
        ValueError: an unknown `arch` or `stem`, no channel, or a head of another number of features.
    """

    def __init__(self, arch: str, head: Head, channels: int = 3, stem: str = "imagenet") -> None:
        check_choice(arch, LARGE_ARCHS, "arch")
        check_choice(stem, STEMS, "stem")
        check_channels(channels)
        super().__init__(head, _DIM, channels)
        from torchvision import models  # here: it takes a second, and most networks do without it

        body: models.ResNet = getattr(models, _BUILDERS[arch])(weights=None, num_classes=1)
        body.fc = nn.Identity()
        if stem == "small":
            body.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            body.maxpool = nn.Identity()
        elif channels != 3:
            body.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.body = body
        self.head = head

    def _features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features


def torchvision_resnet(
    arch: str,
    classes: int,
    channels: int = 3,
    stem: str = "imagenet",
    head: str = "linear",
    seed: int = 0,
    **head_options: Any,
) -> TorchvisionResNet:
    """Return ResNet-50 or ResNeXt-50 (32x4d) with one of this library's heads, initialised by `seed` alone.

    Nothing is downloaded: all weights are drawn. As in torchvision, convolutions start normal with variance
    2 / fan_out and BatchNorm at 1 and 0; the head starts as its class says. With 1000 classes, three channels
    and the imagenet stem there are 25,557,032 and 25,028,904 parameters. The global random state is neither
    used nor changed.

    Args:
        arch: "resnet50" or "resnext50".
        classes: C.
        channels: of the images.
        stem: "imagenet" or "small", see `TorchvisionResNet`.
        head: name of the head; it sees 2048 features.
        seed: of all weights.
        head_options: `bias` (linear), `scale` (cosine, etf), `unit` and `batch_norm` (etf), `head_seed`.

    Raises:
        ValueError: an unknown architecture, stem or head, an option that the head does not have, or an ETF
            head for more than 2049 classes.
    """
    generator = torch.Generator().manual_seed(seed)
    made = make_head(head, _DIM, classes, head_options, generator)
    # layers draw when they are built, from the global generator: give that back as it was
    with torch.random.fork_rng(devices=[]):
        net = TorchvisionResNet(arch, made, channels, stem)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
    return net
