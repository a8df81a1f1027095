"""Further heads that some losses train beside the classifier; a network is evaluated without them."""

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lt_lib._checks import check_choice
from lt_lib.nets.heads import LinearHead

EXTRA_NAMES = ("glmc", "bcl")
_WIDE = 1024  # length of BCL's released projections (2048 features); ours from this many features on
_PROJECTION = 128  # length of GLMC's released projections in its CIFAR network; ours of smaller networks


class GLMCHeads(nn.Module):
    """What GLMC trains beside `model.head`: the plain head, projector and predictor (arXiv 2305.08661).

    `model.head` is the re-balanced head, which is evaluated; the plain head is linear with a bias whatever
    that is (the released code has two such). Projector and predictor are one linear layer each, without
    normalisation, as in the released code (SimSiam's have three and two layers with BatchNorm).
    """

    def __init__(self, dim: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        length = projection_length(dim)
        self.plain = LinearHead(dim, classes, seed=generator)
        self.projector, self.predictor = nn.Linear(dim, length), nn.Linear(length, length)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the plain head (B, C), projections (B, p) and predictions (B, p)."""
        projections = self.projector(features)
        return self.plain(features), projections, self.predictor(projections)


class BCLHeads(nn.Module):
    """What BCL trains beside `model.head`: embeddings of images and of classes (arXiv 2207.09052).

    Two networks of one hidden layer (as many units as features, BatchNorm, ReLU): one on features, one on
    the rows of the classifier's weight matrix, whose outputs are the class prototypes.
    """

    def __init__(self, dim: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.projector, self.prototypes = _mlp(dim), _mlp(dim)

    def forward(self, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings (B, p) of features (B, d), and prototypes (C, p) of a weight matrix (C, d)."""
        return self.projector(features), self.prototypes(weight)


_EXTRAS: dict[str, type[GLMCHeads] | type[BCLHeads]] = {"glmc": GLMCHeads, "bcl": BCLHeads}


def attach_extras(net: nn.Module, name: str, seed: int) -> nn.Module:
    """Give `net` the further heads `name` as `net.extras`, and return it; its own weights stay as they are.

    Args:
        net: has `dim` features, `classes`, and a `head` with `weight_matrix`.
        name: one of `EXTRA_NAMES`.
        seed: of the heads' weights, drawn from a stream of their own.

    Raises:
        ValueError: the name is unknown, or the network lacks `dim` or `classes`.
    """
    check_choice(name, EXTRA_NAMES, "extras")
    sizes: Any = net
    missing = [size for size in ("dim", "classes") if not isinstance(getattr(net, size, None), Integral)]
    if not isinstance(net, nn.Module) or missing:
        raise ValueError(
            "Further heads need a network, a module with whole numbers `dim` and `classes`; found a "
            f"{type(net).__name__}, which lacks {' and '.join(missing) or 'the rest'}. Take one of "
            "`lt_lib.nets.build_net`, or set them on yours."
        )
    stream = int(np.random.SeedSequence([seed, *name.encode()]).generate_state(1, np.uint64)[0]) >> 1
    generator = torch.Generator().manual_seed(stream)
    # layers draw when they are built, from the global generator: give that back as it was
    with torch.random.fork_rng(devices=[]):
        heads = _EXTRAS[name](sizes.dim, sizes.classes, generator)
    for layer in heads.modules():
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5  # torch's own start of a linear layer
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    net.extras = heads
    return net


def extras_of(model: nn.Module, name: str) -> Any:
    """Return the further heads `name` of a network.

    Raises:
        ValueError: the network has none, or others.
    """
    check_choice(name, EXTRA_NAMES, "extras")
    heads = getattr(model, "extras", None)
    if not isinstance(heads, _EXTRAS[name]):
        found = "none" if heads is None else type(heads).__name__
        raise ValueError(
            f"The loss `{name}` trains further heads, which the network must have; found {found}. Build it "
            f'with `extras="{name}"`, for example `build_net({{"extras": "{name}"}}, ...)`, or '
            "`lt_lib.nets.attach_extras` on a network with `dim`, `classes` and `head`."
        )
    return heads


def projection_length(dim: int) -> int:
    """Return the length of projections of `dim` features: 128, or 1024 for networks of at least 1024."""
    return _WIDE if dim >= _WIDE else _PROJECTION


def _mlp(dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, projection_length(dim))
    )
