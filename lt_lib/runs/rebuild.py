"""How a saved network is built again from a few settings, its data being elsewhere."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lt_lib.nets import build_net, net_config
from lt_lib.posthoc import adjusted_head


def network_entry(
    model: nn.Module, net: dict[str, Any], classes: int, channels: int, weights: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return how `built` makes this network: as `net` says, with its head as it is or as an edit left it.

    Args:
        model: the network.
        net: fields of `lt_lib.nets.NetConfig`.
        classes: C.
        channels: of its images.
        weights: its state dict.

    Raises:
        ValueError: `net` builds another network.
    """
    net = net_config(net).settings()
    kind = type(getattr(model, "head", None))
    shapes = {name: value.shape for name, value in weights.items()}
    for edited in (False, True):
        network = {"net": net, "edited_head": edited}
        again: Any = built(network, classes, channels)
        if type(again.head) is kind and {n: v.shape for n, v in again.state_dict().items()} == shapes:
            return network
    raise ValueError(
        f"`net` must build the network that is saved, for {classes} classes and {channels} channel(s); found "
        f"{net}, which builds another. Pass its own settings, or None for a network of your own."
    )


def built(network: Mapping[str, Any], classes: int, channels: int) -> nn.Module:
    """Return the network of an entry, with weights that are to be replaced."""
    model: Any = build_net(network["net"], classes, channels, seed=0)
    if network["edited_head"]:
        model.head = adjusted_head(model.head.eval())
    found: nn.Module = model
    return found


def extras_name(model: Any) -> str | None:
    """Return the name of a network's further heads, see `lt_lib.nets.attach_extras`."""
    heads = type(getattr(model, "extras", None)).__name__
    return {"GLMCHeads": "glmc", "BCLHeads": "bcl"}.get(heads)
