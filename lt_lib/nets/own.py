"""A reader's own network: its classifier found, features and head in the open; weights from a checkpoint."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.nets._base import Classifier
from lt_lib.nets.checkpoint import load_checkpoint
from lt_lib.nets.heads import LinearHead

__all__ = ["OwnNetwork", "find_classifier", "load_checkpoint", "own_network"]


def find_classifier(model: nn.Module, images: Tensor | None = None) -> str:
    """Return the name of the linear layer that gives the logits, such as "fc" or "classifier.6".

    Args:
        model: images -> logits.
        images: a few, (B, ch, H, W) as the network takes them: then the layer is found by what it puts out.
            None takes the linear layer that is defined last, which is right for most networks.

    Raises:
        ValueError: there is no linear layer, or none whose output is what the network returns.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} holds no linear layer, so none of its layers can be told to be the "
            "classifier. Replace the last layer by an `nn.Linear` on flat features."
        )
    if images is None:
        return list(layers)[-1]
    outputs: dict[str, Any] = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: outputs.__setitem__(name, output)

    hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        logits = _logits(model, images)
    finally:
        for hook in hooks:
            hook.remove()
    same = [name for name, output in outputs.items() if torch.equal(output, logits)]
    if not same:
        raise ValueError(
            f"None of the linear layers of {type(model).__name__} ({', '.join(layers)}) puts out what the "
            "network returns: something follows the classifier. Let the network return its logits."
        )
    return same[-1]


class OwnNetwork(Classifier):
    """A network of any make as this library's own: `features(x)`, a linear `head`, `head(features(x))`.

    Weights and buffers are those of the network it was made from, not copies: what edits one edits the
    other. Parameters come in the order of the network, the classifier's last, as `head.weight` and
    `head.bias`.

    Attributes:
        body: the network with its classifier left out; images (B, ch, H, W) -> features (B, d).
        classifier: name of that layer in the network.
    """

    def __init__(self, body: nn.Module, head: LinearHead, channels: int, classifier: str) -> None:
        super().__init__(head, head.weight_matrix().shape[1], channels)
        self.body, self.head, self.classifier = body, head, classifier

    def _features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features


def own_network(model: nn.Module, images: Tensor, classifier: str | None = None) -> OwnNetwork:
    """Return `model` in the form that collapse metrics, post-hoc corrections and head spikes ask for.

    `model` itself stays as it is, and shares its weights with the result. On `images` both are compared.

    Args:
        model: images -> logits, whose last step is a linear layer on flat features; not wrapped in
            DataParallel.
        images: a few, (B, ch, H, W), normalised as the network takes them.
        classifier: name of that layer; None finds it.

    Raises:
        ValueError: no such layer, the network returns no logits (B, C), or does something else than that
            layer at its end.
    """
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(f"`model` must not be wrapped; found {type(model).__name__}. Pass `model.module`.")
    name = find_classifier(model, images) if classifier is None else classifier
    layer: Any = dict(model.named_modules()).get(name)
    if not isinstance(layer, nn.Linear):
        known = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
        found = "no such layer" if layer is None else type(layer).__name__
        raise ValueError(
            f"`classifier` must name a linear layer ({', '.join(known) or 'there is none'}); found `{name}`, "
            f"{found}."
        )
    head = LinearHead(layer.in_features, layer.out_features, layer.bias is not None)
    shared: Any = layer
    head.weight, head.bias = shared.weight, shared.bias
    own = OwnNetwork(_without(model, name), head.train(layer.training), images.shape[1], name)
    own.training = model.training
    _check_same(model, own, images, name)
    return own


def _check_same(model: nn.Module, own: OwnNetwork, images: Tensor, name: str) -> None:
    logits = _logits(model, images)
    try:
        again = _logits(own, images)
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{type(model).__name__} must run without its classifier `{name}`, which gives the features; it "
            f"fails ({str(error).splitlines()[0]}). Name the last layer as `classifier`."
        ) from error
    if again.shape != logits.shape or not torch.allclose(again, logits, rtol=1e-4, atol=1e-5):
        raise ValueError(
            f"The logits of {type(model).__name__} must be what `{name}` puts out; found something else, so "
            "features and head cannot be told apart. Name the last layer as `classifier`."
        )


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return the logits (B, C) of `images` in eval mode, and leave the modes as they were."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            logits = model(images)
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"{type(model).__name__} must return logits (B, C) for images (B, ch, H, W); found {found}. "
            "Wrap it in a module whose `forward` returns the logits alone."
        )
    return logits


def _without(model: nn.Module, name: str) -> nn.Module:
    """Return `model` without the layer `name`: modules on the way to it are twins, all others are shared."""
    if not name:
        return nn.Identity()
    first, _, rest = name.partition(".")
    twin = copy.copy(model)
    children = dict(model.named_children())
    twin.__dict__["_modules"] = {**model._modules, first: _without(children[first], rest)}
    return twin
