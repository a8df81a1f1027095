"""The recipe of balanced contrastive learning: one view to classify, two to contrast."""

from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.losses.views import ContrastiveViews
from lt_lib.nets.extras import extras_of
from lt_lib.training.augment import MIRRORLESS
from lt_lib.training.config import TrainConfig
from lt_lib.training.recipes import Batch, Recipe, apply_loss, check_parts, joined, register


class BCLRecipe(Recipe):
    """Three views of each image in one batch through the network (arXiv 2207.09052).

    See `lt_lib.losses.BCLLoss`. The first view, augmented as the configuration says, is classified. The other
    two are contrasted: SimCLR's ("simclr"), or its crops and changes of brightness and contrast without a
    mirror ("resized_crop") where the first view is not mirrored either, as with digits. Three times the
    images of cross-entropy are forwarded. Here the embedding network sees the contrasted views alone; in the
    released code all three pass it and the first is dropped, so that its batch normalisation differs. `views`
    of the configuration does not matter here.
    """

    def augments(self, config: TrainConfig) -> tuple[str, ...]:
        """Return the augmentation of the three views."""
        contrasted = "resized_crop" if config.augment in MIRRORLESS else "simclr"
        return config.augment, contrasted, contrasted

    def check(self, model: nn.Module) -> None:
        """Refuse a network without `features(x)`, a `head` with weights, and the further heads of BCL.

        Raises:
            ValueError: one of them is missing.
        """
        check_parts(model, ("features", "head"), "bcl")
        extras_of(model, "bcl")
        if not hasattr(model.head, "weight_matrix"):
            raise ValueError(
                "The recipe `bcl` makes class prototypes of the head's `weight_matrix()`, (C, d); found a "
                f"{type(model.head).__name__} without it. Take a head of `lt_lib.nets`."
            )

    def objective(
        self, model: nn.Module, loss: nn.Module, batch: Batch, generator: torch.Generator
    ) -> Tensor:
        """Return the loss of the three views; see `Recipe.objective`.

        Raises:
            ValueError: the batch does not hold three views.
        """
        if len(batch.views) != 3:
            raise ValueError(
                "The recipe `bcl` needs three views of each image, one to classify and two to contrast; "
                f"found {len(batch.views)}. Let `lt_lib.training.train` make the batches."
            )
        network: Any = model
        size = len(batch.labels)
        features = network.features(joined(batch.views))
        logits = network.head(features[:size])
        embeddings, prototypes = network.extras(features[size:], network.head.weight_matrix())
        views = ContrastiveViews((embeddings[:size], embeddings[size:]), prototypes)
        return apply_loss(loss, logits, batch.labels, views)


register("bcl", BCLRecipe())
