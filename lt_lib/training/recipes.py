"""Recipes: how one training step feeds a loss. A loss names its recipe in `loss.recipe`.

Most losses are of the recipe "plain": logits of the augmented images and their labels. Others need features,
several views of each image, or a second batch beside the first; each such need is a recipe of its own,
found by name through `recipe_of`.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lt_lib._checks import check_choice
from lt_lib.losses.dot_regression import DotRegressionLoss
from lt_lib.losses.ldam import LDAMLoss
from lt_lib.nets.heads import CosineHead, ETFHead
from lt_lib.training.augment import MIRRORLESS
from lt_lib.training.config import TrainConfig


@dataclass(frozen=True)
class Batch:
    """What one training step sees: B images, normalised, on the device, once a view."""

    views: tuple[Tensor, ...]  # each (B, ch, H, W)
    labels: Tensor  # (B,) int64
    partner_views: tuple[Tensor, ...] = ()  # each (B, ch, H, W): a second batch, if the recipe has `partner`
    partner_labels: Tensor | None = None  # (B,) int64, of the second batch


class Recipe:
    """How a batch becomes one scalar; a subclass overrides what differs from the recipe "plain".

    `partner` names the sampling of a second batch of the same size, beside the first: "inverse", "balanced",
    "square_root" or "instance" (see `lt_lib.training.sampling`); None for none. It is augmented as the first.
    `mixes_images` says that an image is computed with others before the network sees it: of several processes
    each then reads all images of a batch, not its own alone.
    """

    partner: str | None = None
    mixes_images = False

    def augments(self, config: TrainConfig) -> tuple[str, ...]:
        """Return the augmentation of each view: `config.augment`; of three also twice `further_view`."""
        further = (further_view(config),) * 2 if config.views == "three" else ()
        return (config.augment, *further)

    def check(self, model: nn.Module) -> None:
        """Refuse a network that lacks what `objective` asks of it (called once on entry).

        Raises:
            ValueError: what is missing, and how to build it.
        """

    def objective(
        self, model: nn.Module, loss: nn.Module, batch: Batch, generator: torch.Generator
    ) -> Tensor:
        """Return the scalar to descend, of the logits of the first view.

        With `views` "three" all views go through the network in one batch and only those of the first enter
        the loss: batch normalisation sees all three (so does the code released with arXiv 2605.10047).

        Args:
            model: in train mode, under autocast if the precision is bfloat16.
            loss: the loss, called through `apply_loss`.
            batch: see `Batch`.
            generator: on the CPU, from (seed, epoch) alone; it runs on from batch to batch of an epoch.
        """
        return apply_loss(loss, model(joined(batch.views))[: len(batch.labels)], batch.labels)


class FeatureRecipe(Recipe):
    """Logits as in "plain", and beside them the vectors (B, d) that the head's weight acts on.

    These are the features; for a head with `inputs(features)`, such as the cosine head, what that gives.
    """

    def check(self, model: nn.Module) -> None:
        """Refuse a network without `features(x)` and `head`.

        Raises:
            ValueError: one of them is missing.
        """
        check_parts(model, ("features", "head"), "features")

    def objective(
        self, model: nn.Module, loss: nn.Module, batch: Batch, generator: torch.Generator
    ) -> Tensor:
        """Return the loss of the logits, labels and features of the first view; see `Recipe.objective`."""
        network: Any = model
        features, size = network.features(joined(batch.views)), len(batch.labels)
        if hasattr(network.head, "inputs"):
            # once: a BatchNorm in the head counts every call
            inputs = network.head.inputs(features)
            logits = linear(inputs, network.head.weight_matrix(), network.head.bias_vector())
        else:
            inputs, logits = features, network.head(features)
        return apply_loss(loss, logits[:size], batch.labels, inputs[:size].float())


def further_view(config: TrainConfig) -> str:
    """Return the augmentation of views beside the first: SimCLR's, without mirror and colour for digits.

    The latter is "resized_crop", and stands wherever the first view is not mirrored.
    """
    return "resized_crop" if config.augment in MIRRORLESS else "simclr"


def joined(views: tuple[Tensor, ...]) -> Tensor:
    """Return all views as one batch (V * B, ch, H, W), the first view first."""
    return views[0] if len(views) == 1 else torch.cat(views)


def apply_loss(loss: nn.Module, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
    """Return `loss` in float32, outside autocast; `features` is passed on if there are any.

    A recipe that computes with features itself does so under `full_precision`, too.
    """
    with full_precision(logits.device):
        value: Tensor = (
            loss(logits.float(), labels) if features is None else loss(logits.float(), labels, features)
        )
        return value


def full_precision(device: torch.device) -> torch.autocast:
    """Return the context that switches autocast off within a recipe: losses are of float32."""
    return torch.autocast(device.type, enabled=False)


def check_parts(model: nn.Module, parts: tuple[str, ...], recipe: str) -> None:
    """Refuse a network without the named parts, such as `features` and `head`.

    Raises:
        ValueError: a part is missing.
    """
    missing = [part for part in parts if not hasattr(model, part)]
    if missing:
        raise ValueError(
            f"The recipe `{recipe}` asks the network for `{'` and `'.join(missing)}`, which a "
            f"{type(model).__name__} does not have. Take a network of `lt_lib.nets.build_net`, or give yours "
            "`features(x)` (B, d) and a `head` such that model(x) is head(features(x))."
        )


RECIPES: dict[str, Recipe] = {}


def register(name: str, recipe: Recipe) -> None:
    """Make `recipe` known under `name`, for losses whose `recipe` is that name."""
    RECIPES[name] = recipe


register("plain", Recipe())
register("features", FeatureRecipe())


def recipe_of(loss: nn.Module) -> Recipe:
    """Return the recipe that `loss` asks for now: `loss.recipe`, or "plain" where it has none.

    Raises:
        ValueError: the recipe is unknown.
    """
    name = getattr(loss, "recipe", "plain")
    check_choice(name, RECIPES, "recipe")
    return RECIPES[name]


def check_recipes(model: nn.Module, loss: nn.Module) -> None:
    """Check the recipes of a loss and of those within it, which may come into force later, and their heads.

    Raises:
        ValueError: a recipe is unknown, or asks the network for what it does not have; dot regression without
            an ETF head of its scale, or LDAM on a cosine head of another scale.
    """
    for module in loss.modules():
        recipe_of(module).check(model)
        _check_head(getattr(model, "head", None), module)


def _check_head(head: Any, loss: nn.Module) -> None:
    """Refuse a head on which `loss` would surely mean something else."""
    if isinstance(loss, DotRegressionLoss):
        if not isinstance(head, ETFHead):
            raise ValueError(
                "The loss `dr` needs the fixed rows of an ETF head, since a trained head can shrink or turn "
                f'at will; found a {type(head).__name__}. Build the network with `head="etf", unit=True`.'
            )
        scale = float(torch.linalg.vector_norm(head.weight_matrix(), dim=1).mean())
    elif isinstance(loss, LDAMLoss) and isinstance(head, CosineHead):
        scale = head.scale
    else:
        return
    if not math.isclose(scale, loss.scale, rel_tol=1e-3):
        name = "dr" if isinstance(loss, DotRegressionLoss) else "ldam"
        raise ValueError(
            f"The loss `{name}` reads cosines from logits over its `scale`, {loss.scale:g}, but the head "
            f"multiplies them by {scale:g}. Give both the same `scale`."
        )
