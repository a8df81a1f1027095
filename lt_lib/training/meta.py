"""The recipe "meta": weights of samples from one virtual step, seen by a class-balanced batch."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy

from lt_lib.training.recipes import Batch, Recipe, apply_loss, full_precision, joined, register


def meta_weights(
    model: nn.Module, images: Tensor, labels: Tensor, meta: Tensor, meta_labels: Tensor
) -> Tensor:
    r"""Return the weights (B,) that learning to reweight examples gives (Ren et al. 2018, arXiv 1803.09050).

    With per-sample losses l_i of the batch and the mean loss l_g of the meta batch, let a virtual step go to
    :math:`\hat\theta(\epsilon)=\theta-\eta\nabla_\theta\sum_i\epsilon_i l_i(\theta)`, as in their
    Algorithm 1. Then

    .. math:: w_i\propto\max\Bigl(-\frac{\partial l_g(\hat\theta)}{\partial\epsilon_i}\Big|_{\epsilon=0},
        0\Bigr)=\eta\max\bigl(\langle\nabla l_g(\theta),\nabla l_i(\theta)\rangle,0\bigr),
        \qquad\sum_i w_i=1,

    and w = 0 where no sample agrees with the meta batch. The step size cancels. Since
    the derivative is taken at :math:`\epsilon=0`, where the virtual step has not moved, the scalar products
    are the derivatives of all l_i along :math:`\nabla l_g`: one backward pass over the meta batch and one
    forward-mode pass over the batch, in place of the published code's second backward pass through an
    unrolled step. The values are the same.

    Both passes are of the precision of the parameters, also within autocast, whose casts forward mode does
    not follow. They see batch statistics of their own where the model is in train mode; parameters, buffers,
    gradients and modes of the model stay as they are. Frozen parameters take no part.

    Args:
        model: maps (B, ch, H, W) to logits (B, C).
        images: the batch, (B, ch, H, W).
        labels: (B,) int64.
        meta: images of the meta batch, (M, ch, H, W).
        meta_labels: (M,) int64.
    """
    with full_precision(images.device):
        return _agreement(model, images, labels, meta, meta_labels)


def _agreement(model: nn.Module, images: Tensor, labels: Tensor, meta: Tensor, meta_labels: Tensor) -> Tensor:
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def losses(parameters: Mapping[str, Tensor], inputs: Tensor, wanted: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # statistics move
        logits = functional_call(model, {**parameters, **buffers}, (inputs,))
        exact = logits if logits.dtype == torch.float64 else logits.float()
        return cross_entropy(exact, wanted, reduction="none")

    with torch.enable_grad():
        value = losses(learned, meta, meta_labels).mean()
    slopes = torch.autograd.grad(value, list(learned.values()), allow_unused=True)
    constants = {name: p.detach() for name, p in learned.items()}
    direction = {
        name: torch.zeros_like(p) if slope is None else slope
        for (name, p), slope in zip(constants.items(), slopes, strict=True)
    }
    with torch.no_grad(), warnings.catch_warnings():
        # on first use PyTorch loads its forward-mode rules through a function that it deprecates itself
        warnings.simplefilter("ignore", FutureWarning)
        pushed: Any = jvp(lambda parameters: losses(parameters, images, labels), (constants,), (direction,))
    weights: Tensor = pushed[1].clamp(min=0)
    return weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


class MetaRecipe(Recipe):
    """Weights each sample by `meta_weights`, then takes the loss of the weighted batch.

    The meta batch is as large as the batch, drawn class-balanced with replacement from the training images
    themselves and augmented like them: no calibration or clean images are used. (The paper takes a small
    clean and balanced validation set.) A step forwards and differentiates the batch three times over: its
    cost is that of about three steps of cross-entropy.
    """

    partner = "balanced"

    def objective(
        self, model: nn.Module, loss: nn.Module, batch: Batch, generator: torch.Generator
    ) -> Tensor:
        """Return the loss, whose `features` are the weights; see `Recipe.objective`."""
        others: Any = batch.partner_labels
        weights = meta_weights(model, batch.views[0], batch.labels, batch.partner_views[0], others)
        logits = model(joined(batch.views))[: len(batch.labels)]
        return apply_loss(loss, logits, batch.labels, weights)


register("meta", MetaRecipe())
