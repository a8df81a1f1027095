"""A random batch for the loss of GLMC, and the gradient in everything that enters it."""

import torch

from lt_lib.losses.views import MixedViews

COUNTS = [90, 40, 15, 5]


def problem(size=12, seed=0, shares=(0.3, 0.45), dtype=torch.float64, labels=None):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    if labels is None:
        labels = torch.multinomial(torch.tensor([6.0, 3, 2, 1]), size, True, generator=generator)
    partners = torch.multinomial(torch.tensor([1.0, 2, 3, 6]), size, True, generator=generator)
    plain, projections, predictions = ((drawn(size, width), drawn(size, width)) for width in (4, 7, 7))
    views = MixedViews(partners, shares, drawn(size, 4), plain, projections, predictions)
    return drawn(size, 4), labels, views


def leaves(logits, views):
    return [logits, views.local_logits, *views.plain_logits, *views.projections, *views.predictions]


def gradients(value, tensors):
    found = torch.autograd.grad(value, tensors, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors, strict=True)]
