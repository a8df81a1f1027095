"""Class and cross-class means of the gradients that make up the Gauss-Newton matrix (Papyan 2019, 2020).

For softmax cross-entropy the Gauss-Newton matrix is a second moment. With the logits' Jacobian J_i, the
probabilities p_i and `delta_{i,c'} = sqrt(p_{i,c'}) J_i^T (e_{c'} - p_i)`, whose square root of a probability
makes `sum_c' (.)(.)^T = J_i^T (diag(p_i) - p_i p_i^T) J_i`::

    G = 1/n sum_i sum_c' delta_{i,c'} delta_{i,c'}^T

Up to its factor delta_{i,c'} is minus the gradient of the loss that sample i would have with label c'.
Averages over the samples of class c give the vectors delta_{c,c'}; their means over c' != c give delta_c.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lt_lib._checks import check_choice, check_labels, check_whole
from lt_lib.curvature.guard import buffers_kept, check_batch_norm, untouched, unwrapped
from lt_lib.curvature.problem import Params, check_data, select

AVERAGES = ("plain", "weighted")


@dataclass(frozen=True)
class ClassGradients:
    """Vectors whose weighted outer products are parts of the Gauss-Newton matrix.

    `class_vectors[c]` scaled by `sqrt(class_weights[c])` and stacked give the class part of G; the same with
    the pairs gives the part that holds class and cross-class means together. A class without images has
    weight 0.
    """

    class_vectors: Tensor  # (C, P): delta_c
    class_weights: Tensor  # (C,) float64: pi_c (C - 1), or the weights of the 2020 paper
    pair_vectors: Tensor | None  # (C, C, P): delta_{c,c'}; None unless asked for
    pair_weights: Tensor | None  # (C, C) float64; column c' = c is the own-label term
    counts: Tensor  # (C,) int64, images a class


def class_gradients(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: int | None = None,
    *,
    pairs: bool = False,
    average: str = "plain",
    params: Params = None,
    chunk: int = 1,
    batch: int = 512,
) -> ClassGradients:
    """Return class means (and cross-class means) of the gradients behind G, by backward passes of class sums.

    Class means cost one forward and one backward pass over the images in all; pairs cost C backward passes.
    No gradient of a single sample is ever formed. Vectors follow `named_parameters()`; the model runs in eval
    mode and is left as it was.

    Args:
        model: maps (B, ...) to logits (B, C).
        images: (n, ...).
        labels: (n,) in 0..C-1.
        classes: C, the number of logits; None: take it from them.
        pairs: whether to return delta_{c,c'} too: C^2 P numbers of memory.
        average: "plain": arithmetic means of `sqrt(p_{i,c'}) J_i^T (e_{c'} - p_i)` (Papyan 2019). "weighted":
            means of `J_i^T (e_{c'} - p_i)` weighted by p_{i,c'}, with their total as the weight of the outer
            product (Papyan 2020). Either way the weighted outer products sum to a lower bound of G.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        chunk: cotangents per vectorised backward pass; more is faster on a GPU and takes that much more
            memory.
        batch: images per forward pass, within a class.

    Raises:
        ValueError: labels or `classes` that do not fit, images that are not finite, an unknown average, or as
            `lt_lib.curvature.problem.select`.
    """
    check_choice(average, AVERAGES, "average")
    check_whole(chunk, "chunk")
    check_whole(batch, "batch")
    with evaluating(model, params) as (model, parameters):
        images, labels = check_data(images, labels, next(iter(parameters.values())))
        logits = _logits(model, parameters, images[:1]).shape[1]
        classes = logits if classes is None else classes
        if classes != logits:
            raise ValueError(f"`classes` must be the number of logits, {logits}; found {classes}.")
        labels = check_labels(labels, classes)
        counts = torch.bincount(labels, minlength=classes).cpu()
        rows = [
            _one_class(model, parameters, images[labels == c], c, pairs, average, (chunk, batch))
            if counts[c]
            else _nothing(parameters, classes if pairs else 1, classes)
            for c in range(classes)
        ]
    vectors, masses = torch.stack([v for v, _ in rows]), torch.stack([m for _, m in rows])
    share = counts.to(torch.float64) / counts.sum()
    own = torch.eye(classes, dtype=torch.float64)
    if average == "plain":
        masses = torch.ones(classes, classes, dtype=torch.float64)
    pair_weights = share[:, None] * masses
    class_weights = (pair_weights * (1 - own)).sum(1)
    if not pairs:
        return ClassGradients(vectors[:, 0], class_weights, None, None, counts)
    inner = (masses * (1 - own)).to(vectors)
    inner = inner / inner.sum(1, keepdim=True).clamp_min(torch.finfo(inner.dtype).tiny)
    means = torch.einsum("ck,ckp->cp", inner, vectors)
    return ClassGradients(means, class_weights, vectors, pair_weights, counts)


def _one_class(
    model: nn.Module,
    parameters: dict[str, Tensor],
    images: Tensor,
    own: int,
    pairs: bool,
    average: str,
    sizes: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Vectors (C or 1, P) of one class, and the mean probabilities (C,) of its samples."""
    chunk, batch = sizes
    total: Tensor | None = None
    mass: Tensor | None = None
    for part in images.split(batch):
        logits = _logits(model, parameters, part)
        p = logits.detach().softmax(1)
        cotangents = _cotangents(p, own, pairs, average)
        pulled = pull_back(logits, parameters, cotangents, chunk)
        total = pulled if total is None else total + pulled
        summed = p.sum(0, dtype=torch.float32 if p.device.type == "mps" else torch.float64).cpu()
        mass = summed if mass is None else mass + summed
    assert total is not None
    assert mass is not None
    mass = mass.to(torch.float64)
    if average == "plain":
        return total / len(images), mass / len(images)
    weight = mass if pairs else (mass.sum() - mass[own])[None]
    return total / weight.to(total)[:, None].clamp_min(1e-30), mass / len(images)


def _cotangents(p: Tensor, own: int, pairs: bool, average: str) -> Tensor:
    """Cotangents (C or 1, B, C) of the logits: their pull-backs are sums over samples of the vectors."""
    classes = p.shape[1]
    pairwise = torch.eye(classes, dtype=p.dtype, device=p.device)[:, None] - p  # (C, B, C)
    pairwise = pairwise * (p.sqrt() if average == "plain" else p).T[:, :, None]
    if pairs:
        return pairwise
    rest = pairwise.sum(0) - pairwise[own]
    return (rest / (classes - 1) if average == "plain" else rest)[None]


def pull_back(logits: Tensor, parameters: dict[str, Tensor], cotangents: Tensor, chunk: int = 1) -> Tensor:
    """Return J^T times each cotangent (k, B, C) as rows (k, P); unused parameters get zeros."""
    leaves, rows = list(parameters.values()), []
    for start in range(0, len(cotangents), chunk):
        block = cotangents[start : start + chunk]
        batched = len(block) > 1
        found = torch.autograd.grad(
            logits,
            leaves,
            grad_outputs=block if batched else block[0],
            retain_graph=start + chunk < len(cotangents),
            allow_unused=True,
            is_grads_batched=batched,
        )
        flat = [
            leaf.new_zeros(len(block), leaf.numel()) if g is None else g.reshape(len(block), -1)
            for g, leaf in zip(found, leaves, strict=True)
        ]
        rows.append(torch.cat(flat, 1))
    return torch.cat(rows)


@contextmanager
def evaluating(model: nn.Module, params: Params = None) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
    """Yield the bare model in eval mode, and fresh leaves that share its chosen parameters' memory.

    On leaving, modes and the global random state are as before; parameters, buffers and `.grad` are never
    touched.

    Raises:
        ValueError: as `lt_lib.curvature.problem.select`.
    """
    model = unwrapped(model)
    check_batch_norm(model)
    chosen = select(model, params)
    with torch.inference_mode(False):  # what was made in inference mode cannot be differentiated
        plain = {name: p.clone() if p.is_inference() else p for name, p in chosen.items()}
        leaves = {name: p.detach().requires_grad_() for name, p in plain.items()}
    with buffers_kept(model), untouched(model, next(iter(leaves.values())).device):
        yield model, leaves


def _logits(model: nn.Module, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
    return functional_call(model, parameters, (images,))


def _nothing(parameters: dict[str, Tensor], count: int, classes: int) -> tuple[Tensor, Tensor]:
    leaf = next(iter(parameters.values()))
    size = sum(p.numel() for p in parameters.values())
    return leaf.new_zeros(count, size), torch.zeros(classes, dtype=torch.float64)


def class_loss_gradients(
    model: nn.Module, images: Tensor, labels: Tensor, *, params: Params = None, batch: int = 512
) -> Tensor:
    """Return the gradient of each class's mean cross-entropy, (C, P); zeros for a class without images.

    Weighted by the class shares they sum to the gradient of the mean loss. One forward and one backward pass
    over the images in all; eval mode, the model is left as it was.

    Args:
        model: maps (B, ...) to logits (B, C).
        images: (n, ...).
        labels: (n,) in 0..C-1.
        params: as in `class_gradients`.
        batch: images a pass, within a class.

    Raises:
        ValueError: labels that do not fit, or as `lt_lib.curvature.problem.select`.
    """
    check_whole(batch, "batch")
    with evaluating(model, params) as (model, parameters):
        images, labels = check_data(images, labels, next(iter(parameters.values())))
        classes = _logits(model, parameters, images[:1]).shape[1]
        labels = check_labels(labels, classes)
        size = sum(p.numel() for p in parameters.values())
        rows = torch.zeros(classes, size, dtype=next(iter(parameters.values())).dtype, device=images.device)
        for c in range(classes):
            ours = images[labels == c]
            for part in ours.split(batch) if len(ours) else ():
                logits = _logits(model, parameters, part)
                slope = logits.detach().softmax(1) / len(ours)
                slope[:, c] -= 1 / len(ours)
                rows[c] += pull_back(logits, parameters, slope[None])[0]
    return rows
