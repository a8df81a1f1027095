"""From a configuration to a network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import Any

from lt_lib._checks import check_choice
from lt_lib.nets._base import Classifier
from lt_lib.nets.extras import EXTRA_NAMES, attach_extras
from lt_lib.nets.heads import HEAD_NAMES, HEAD_OPTIONS
from lt_lib.nets.imagenet import LARGE_ARCHS, STEMS, torchvision_resnet
from lt_lib.nets.resnet import _blocks, _check_sizes, resnet

ARCHS = ("cifar", *LARGE_ARCHS)
_SIZES = ("depth", "width")
_FLAGS = ("bias", "unit", "batch_norm")
_OPTIONS = (*_FLAGS, "scale", "head_seed")
_DEPTH, _WIDTH = 8, 8


@dataclass(frozen=True)
class NetConfig:
    """What a network is, apart from its data: None leaves an option at its default.

    A built configuration holds the sizes and the stem that its architecture has by default, so two
    configurations that mean the same network are equal.

    Raises:
        ValueError: a depth that is not 6n + 2, a width below 1, an unknown architecture, stem or head, or an
            option that the architecture or the head does not have.
    """

    depth: int | None = None  # cifar only: 6n + 2; None: 8
    width: int | None = None  # cifar only: channels of the first stage, 4 * width features; None: 8
    head: str = "linear"  # linear, cosine or etf
    bias: bool | None = None  # linear only
    scale: float | None = None  # cosine and etf only
    head_seed: int | None = None  # of the head's weights or frame; None: drawn after the network's seed
    unit: bool | None = None  # etf only: features to the unit sphere first
    batch_norm: bool | None = None  # etf only: features through a BatchNorm, before that
    arch: str = "cifar"  # cifar, or torchvision's resnet50 and resnext50 (32x4d), 2048 features
    stem: str | None = None  # not cifar: imagenet (for 224 pixels) or small (for 32); None: imagenet
    extras: str | None = (
        None  # further heads that a loss trains: glmc or bcl; all other weights stay the same
    )

    def __post_init__(self) -> None:
        check_choice(self.arch, ARCHS, "arch")
        if self.arch == "cifar":
            self._check_cifar()
        else:
            self._check_large()
        check_choice(self.head, HEAD_NAMES, "head")
        if self.extras is not None:
            check_choice(self.extras, EXTRA_NAMES, "extras")
        self._check_options()

    def _check_cifar(self) -> None:
        if self.stem is not None:
            raise ValueError(
                f"`stem` does not apply to the architecture `cifar`, which has one; found {self.stem!r}. "
                f"Leave it out, or choose `arch` {' or '.join(LARGE_ARCHS)}."
            )
        for name, default in zip(_SIZES, (_DEPTH, _WIDTH), strict=True):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, default)
            elif not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"`{name}` must be a whole number; found {value!r}. Pass for example 8.")
        _blocks(self.depth or 0)
        _check_sizes(self.width or 0, channels=1)

    def _check_large(self) -> None:
        for name in _SIZES:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` applies to the architecture `cifar` only: `{self.arch}` has one size; found "
                    f"{getattr(self, name)!r}. Leave it out."
                )
        object.__setattr__(self, "stem", STEMS[0] if self.stem is None else self.stem)
        check_choice(self.stem, STEMS, "stem")

    def _check_options(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool | None):
                raise ValueError(f"`{name}` must be true or false; found {getattr(self, name)!r}.")
        if not isinstance(self.scale, int | float | None) or isinstance(self.scale, bool):
            raise ValueError(f"`scale` must be a number; found {self.scale!r}. Pass for example 30.")
        if not isinstance(self.head_seed, int | None) or isinstance(self.head_seed, bool):
            raise ValueError(f"`head_seed` must be a whole number; found {self.head_seed!r}.")
        for name in (*_FLAGS, "scale"):
            if getattr(self, name) is not None and name not in HEAD_OPTIONS[self.head]:
                raise ValueError(
                    f"`{name}` does not apply to the head `{self.head}`, which takes "
                    f"{', '.join(HEAD_OPTIONS[self.head])}. Leave it out."
                )

    def head_options(self) -> dict[str, Any]:
        """Return the options of the head that are set."""
        return {name: getattr(self, name) for name in _OPTIONS if getattr(self, name) is not None}

    def settings(self) -> dict[str, Any]:
        """Return what is set, default sizes and stem included; `NetConfig(**settings)` is this one."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def net_config(config: NetConfig | Mapping[str, Any]) -> NetConfig:
    """Return `config` as a `NetConfig`.

    Raises:
        ValueError: an unknown field (the known ones are listed), or whatever `NetConfig` refuses.
    """
    if isinstance(config, NetConfig):
        return config
    for key in config:
        check_choice(key, (field.name for field in fields(NetConfig)), "net")
    return NetConfig(**config)


def build_net(config: NetConfig | Mapping[str, Any], classes: int, channels: int, seed: int) -> Classifier:
    """Return the network of `config`, initialised by `seed` alone; the global random state is untouched.

    Args:
        config: a `NetConfig`, or a mapping with some of its fields.
        classes: C.
        channels: of the images.
        seed: of the weights.

    Raises:
        ValueError: an unknown field (the known ones are listed), `classes`, `channels` or `seed` is no whole
            number, or whatever `resnet` or `torchvision_resnet` refuses.
    """
    config = net_config(config)
    for name, value in (("classes", classes), ("channels", channels), ("seed", seed)):
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise ValueError(f"`{name}` must be a whole number; found {value!r}. Pass an int.")
    options = config.head_options()
    net: Classifier
    if config.depth is None or config.width is None:
        stem = config.stem or STEMS[0]
        net = torchvision_resnet(config.arch, classes, channels, stem, config.head, seed, **options)
    else:
        net = resnet(config.depth, config.width, classes, channels, config.head, seed, **options)
    if config.extras is not None:
        attach_extras(net, config.extras, seed)
    return net
