"""From a configuration to a network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lt_lib._checks import check_choice
from lt_lib.nets.heads import HEAD_NAMES, HEAD_OPTIONS
from lt_lib.nets.resnet import ResNet, _blocks, _check_sizes, resnet


@dataclass(frozen=True)
class NetConfig:
    """What a network is, apart from its data: None leaves an option at the head's own default.

    Raises:
        ValueError: a depth that is not 6n + 2, a width below 1, an unknown head, or an option that the head
            does not have.
    """

    depth: int = 8  # 6n + 2
    width: int = 8  # channels of the first stage; 4 * width features
    head: str = "linear"  # linear, cosine or etf
    bias: bool | None = None  # linear only
    scale: float | None = None  # cosine and etf only
    head_seed: int | None = None  # of the head's weights or frame; None: drawn after the network's seed

    def __post_init__(self) -> None:
        for name in ("depth", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"`{name}` must be a whole number; found {value!r}. Pass for example 8.")
        _blocks(self.depth)
        _check_sizes(self.width, channels=1)
        check_choice(self.head, HEAD_NAMES, "head")
        self._check_options()

    def _check_options(self) -> None:
        if not isinstance(self.bias, bool | None):
            raise ValueError(f"`bias` must be true or false; found {self.bias!r}.")
        if not isinstance(self.scale, int | float | None) or isinstance(self.scale, bool):
            raise ValueError(f"`scale` must be a number; found {self.scale!r}. Pass for example 30.")
        if not isinstance(self.head_seed, int | None) or isinstance(self.head_seed, bool):
            raise ValueError(f"`head_seed` must be a whole number; found {self.head_seed!r}.")
        for name in ("bias", "scale"):
            if getattr(self, name) is not None and name not in HEAD_OPTIONS[self.head]:
                raise ValueError(
                    f"`{name}` does not apply to the head `{self.head}`, which takes "
                    f"{', '.join(HEAD_OPTIONS[self.head])}. Leave it out."
                )

    def head_options(self) -> dict[str, Any]:
        """Return the options of the head that are set."""
        return {
            k: v for k, v in asdict(self).items() if k in ("bias", "scale", "head_seed") and v is not None
        }


def build_net(config: NetConfig | Mapping[str, Any], classes: int, channels: int, seed: int) -> ResNet:
    """Return the network of `config`, initialised by `seed` alone; the global random state is untouched.

    Args:
        config: a `NetConfig`, or a mapping with some of its fields.
        classes: C.
        channels: of the images.
        seed: of the weights.

    Raises:
        ValueError: an unknown field (the known ones are listed), or whatever `resnet` refuses.
    """
    if not isinstance(config, NetConfig):
        for key in config:
            check_choice(key, (field.name for field in fields(NetConfig)), "net")
        config = NetConfig(**config)
    return resnet(config.depth, config.width, classes, channels, config.head, seed, **config.head_options())
