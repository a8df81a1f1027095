"""Images mixed in pairs, over all pixels and by a pasted box, and the recipe of GLMC made of both."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lt_lib.losses.glmc import PARTNERS, GLMCLoss
from lt_lib.losses.views import MixedViews
from lt_lib.nets.extras import extras_of
from lt_lib.training.config import TrainConfig, check_number
from lt_lib.training.recipes import Batch, Recipe, apply_loss, check_parts, register


def draw_share(beta: float, generator: torch.Generator) -> float:
    """Draw lambda of Beta(beta, beta), in 0..1, for a whole batch (one number from `generator`)."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return float(np.random.default_rng(seed).beta(beta, beta))


def draw_box(share: float, height: int, width: int, generator: torch.Generator) -> tuple[slice, slice]:
    r"""Draw the rows and columns of a box to paste, cut at the border (Yun et al. 2019, arXiv 1905.04899).

    Before the cut its sides are those of the image times :math:`\sqrt{1-\lambda}`, rounded; its centre is
    uniform over the pixels.
    """
    ratio = math.sqrt(1 - share)
    sides = []
    for length in (height, width):
        side = round(length * ratio)
        start = int(torch.randint(length, (), generator=generator)) - side // 2
        sides.append(slice(max(start, 0), min(start + side, length)))
    return sides[0], sides[1]


def mixup(images: Tensor, partners: Tensor, share: float) -> Tensor:
    """Return `share` * images + (1 - share) * partners (Zhang et al. 2018, arXiv 1710.09412).

    Raises:
        ValueError: `share` is no number in 0..1, or the shapes differ.
    """
    _check_mixture(images, partners, share)
    return torch.lerp(partners, images, share)


def cutmix(
    images: Tensor, partners: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Return images with one box of their partners in all, and the share of pixels that are still their own.

    That share is the label's, and differs from `share` where the box is cut at the border or rounded: the
    original CutMix takes it so, the code released with GLMC keeps `share`.

    Raises:
        ValueError: `share` is no number in 0..1, or the shapes differ.
    """
    _check_mixture(images, partners, share)
    height, width = images.shape[2:]
    rows, columns = draw_box(share, height, width, generator)
    mixed = images.clone()
    mixed[:, :, rows, columns] = partners[:, :, rows, columns]
    area = max(rows.stop - rows.start, 0) * max(columns.stop - columns.start, 0)
    return mixed, 1 - area / (height * width)


def _check_mixture(images: Tensor, partners: Tensor, share: float) -> None:
    check_number(share, "share", 0, 1)
    if images.shape != partners.shape:
        raise ValueError(
            "Images and partners must have the same shape, one partner an image; found "
            f"{tuple(images.shape)} and {tuple(partners.shape)}."
        )


class GLMCRecipe(Recipe):
    """Two views of a batch and of its partners, mixed globally and locally (arXiv 2305.08661).

    See `lt_lib.losses.GLMCLoss`. Of each image and of each partner the first view goes to MixUp and the
    second to CutMix, under one lambda a batch. The branches pass the network one after the other, as in the
    released code: batch normalisation sees each on its own, and twice the images of cross-entropy are
    forwarded. `views` of the configuration does not matter here.

    Args:
        partner: sampling of the partners.
    """

    mixes_images = True

    def __init__(self, partner: str) -> None:
        self.partner = partner

    def augments(self, config: TrainConfig) -> tuple[str, ...]:
        """Return the augmentation of both views."""
        return config.augment, config.augment

    def check(self, model: nn.Module) -> None:
        """Refuse a network without `features(x)`, `head` and the further heads of GLMC.

        Raises:
            ValueError: one of them is missing.
        """
        check_parts(model, ("features", "head"), "glmc")
        extras_of(model, "glmc")

    def objective(
        self, model: nn.Module, loss: nn.Module, batch: Batch, generator: torch.Generator
    ) -> Tensor:
        """Return the loss of both branches; see `Recipe.objective`.

        Raises:
            ValueError: the batch has no partners.
        """
        if batch.partner_labels is None or len(batch.partner_views) != 2:
            raise ValueError(
                "The recipe `glmc` mixes two views of a batch with two of its partners; found "
                f"{len(batch.partner_views)} of partners. Let `lt_lib.training.train` draw the batches."
            )
        share = draw_share(beta_of(loss), generator)
        mixed = mixup(batch.views[0], batch.partner_views[0], share)
        pasted, kept = cutmix(batch.views[1], batch.partner_views[1], share, generator)
        first, second = (_heads(model, images) for images in (mixed, pasted))
        (logits, *globally), (local_logits, *locally) = first, second
        plain, projections, predictions = zip(globally, locally, strict=True)
        views = MixedViews(batch.partner_labels, (share, kept), local_logits, plain, projections, predictions)
        return apply_loss(loss, logits, batch.labels, views)


def _heads(model: Any, images: Tensor) -> tuple[Tensor, ...]:
    """Return logits of the re-balanced and the plain head, projections and predictions."""
    features = model.features(images)
    return model.head(features), *model.extras(features)


def beta_of(loss: nn.Module) -> float:
    """Return `beta` of the loss `glmc`, which may stand within others.

    Raises:
        ValueError: there is none.
    """
    for module in loss.modules():
        if isinstance(module, GLMCLoss):
            return module.beta
    raise ValueError(
        f"The recipe `glmc` reads `beta` of the loss `glmc`; found a {type(loss).__name__} without one. "
        'Build it with `make_loss("glmc", class_counts)`.'
    )


for _partner in PARTNERS:
    register("glmc" if _partner == "instance" else f"glmc_{_partner}", GLMCRecipe(_partner))
