"""How much of what a parameter direction does to the logits is vector scaling: class gains and class biases.

Vector scaling z_k -> s_k z_k + b_k (Guo et al. 2017) has the tangent space {s_k z_k + b_k} at s = 1, b = 0.
Once shifts of all logits of a sample, which the softmax ignores, are taken out, it has 2C - 1 dimensions. At
full neural collapse the 2C - 1 spikes of the head span it exactly (Theorem T3, consequence 3).
"""

import warnings
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from lt_lib._checks import check_labels, check_whole
from lt_lib.collapse.etf import generator_of
from lt_lib.collapse.metrics import as_double, group_means
from lt_lib.curvature.class_gradients import Params, evaluating
from lt_lib.curvature.problem import check_data


@dataclass(frozen=True)
class VectorScaling:
    """R^2 of logit changes on the tangent space of vector scaling; nan where the logits do not change."""

    sample: Tensor  # (K,) float64: all samples, n C numbers a direction
    class_mean: Tensor  # (K,) float64: class means of logits and of their change, C C numbers a direction
    change: Tensor  # (K,) float64: rms of the centred logit change per unit of direction
    random_sample: Tensor  # (R,) float64: the same of random directions, the null to compare with
    random_class_mean: Tensor  # (R,) float64

    # the null is not the share of dimensions, (2C - 1) / (C (C - 1)): in a collapsed head a random direction
    # has about (gamma + C / (C - 1)^2) / (gamma + 1), since a large common mean turns it into a bias shift


def vector_scaling_share(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    vectors: Tensor,
    *,
    random: int = 10,
    seed: int = 0,
    centre_logits: bool = False,
    params: Params = None,
    batch: int = 512,
) -> VectorScaling:
    """Return, for each parameter direction, the share of its logit change that is vector scaling (R^2).

    The change is the derivative J v (`logit_changes`), centred over the logits of each sample.

    Args:
        model: maps (B, ...) to logits (B, C); runs in eval mode and is left as it was.
        images: (n, ...).
        labels: (n,) in 0..C-1, for class means; absent classes are left out.
        vectors: (K, P) directions over the chosen parameters, in the order of `named_parameters()`.
        random: R, number of random directions to compare with, uniform over the sphere.
        seed: of those.
        centre_logits: whether gains act on logits centred per sample. The softmax does not see the mean
            logit, so networks that agree may differ in gains of raw logits; False is z_k -> s_k z_k as
            written.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass.

    Raises:
        ValueError: shapes or labels that do not fit, or images that are not finite.
    """
    if vectors.ndim != 2 or len(labels) != len(images):
        raise ValueError(
            "`vectors` must be rows (K, P), and `labels` must hold one class an image; found shape "
            f"{tuple(vectors.shape)}, and {len(labels)} labels for {len(images)} images."
        )
    check_whole(random, "random", 0)
    size = vectors.shape[-1]
    noise = torch.randn(random, size, generator=generator_of(seed)) / size**0.5
    logits, changes = logit_changes(
        model, images, torch.cat([vectors, noise.to(vectors)]), params=params, batch=batch
    )
    labels = check_labels(labels.cpu(), logits.shape[1])
    counts = torch.bincount(labels, minlength=logits.shape[1])
    present = counts > 0

    def means(rows: Tensor) -> Tensor:
        return group_means(rows, labels, counts.clamp_min(1))[present]

    if centre_logits:
        logits = logits - logits.mean(1, keepdim=True)
    sample = scaling_share(logits, changes)
    class_mean = scaling_share(means(logits), torch.stack([means(change) for change in changes]))
    k = len(vectors)
    centred = changes[:k] - changes[:k].mean(2, keepdim=True)
    strength = centred.square().mean((1, 2)).sqrt() / as_double(vectors).norm(dim=1).cpu()
    return VectorScaling(sample[:k], class_mean[:k], strength, sample[k:], class_mean[k:])


def scaling_share(logits: Tensor, changes: Tensor) -> Tensor:
    """Return the R^2 of logit changes on the span of `s_k z_k + b_k`, everything centred over logits.

    R^2 is the squared norm of the projection over the squared norm, with no mean over samples removed: a
    constant is a bias, which belongs to the span. The 2C x 2C normal equations are solved by a
    pseudo-inverse, since the common bias (and whatever gain and bias share) is null.

    Args:
        logits: (n, C).
        changes: (K, n, C).

    Returns:
        (K,) float64 in [0, 1]; nan for a change that is zero after centring.

    Raises:
        ValueError: shapes that do not fit.
    """
    if logits.ndim != 2 or changes.ndim != 3 or changes.shape[1:] != logits.shape:
        raise ValueError(
            "`changes` must be (K, n, C) for `logits` (n, C); found shapes "
            f"{tuple(changes.shape)} and {tuple(logits.shape)}."
        )
    z, change = as_double(logits), as_double(changes)
    n, classes = z.shape
    scale = z.square().mean(0).sqrt()
    z = z / torch.where(scale > 0, scale, 1.0)  # gains and biases on one footing
    change = change - change.mean(2, keepdim=True)
    centring = torch.eye(classes, dtype=z.dtype, device=z.device) - 1 / classes
    gains, mixed = z.T @ z, z.sum(0)[:, None].expand(classes, classes)
    normal = torch.cat([torch.cat([gains, mixed], 1), torch.cat([mixed.T, torch.full_like(gains, n)], 1)])
    normal = normal * centring.repeat(2, 2)
    moments = torch.cat([torch.einsum("nc,knc->kc", z, change), change.sum(1)], 1)
    values, axes = torch.linalg.eigh(normal)
    kept = values > 1e-11 * values.max()
    explained = ((moments @ axes[:, kept]).square() / values[kept]).sum(1)
    total = change.square().sum((1, 2))
    # centring leaves rounding of size eps^2 |change|^2 where the change is a pure shift
    floor = 1e-28 * as_double(changes).square().sum((1, 2))
    share = torch.where(total > floor, explained / total, torch.nan)
    return share.clamp_max(1.0).cpu()


def logit_changes(
    model: nn.Module, images: Tensor, vectors: Tensor, *, params: Params = None, batch: int = 512
) -> tuple[Tensor, Tensor]:
    """Return logits (n, C) and their derivative along each direction (K, n, C), float64 on the CPU.

    Forward-mode derivatives J v: one pass a direction and batch, no difference quotient. Eval mode; the model
    is left as it was.

    Args:
        model: maps (B, ...) to logits (B, C).
        images: (n, ...).
        vectors: (K, P) over the chosen parameters, in the order of `named_parameters()`.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass.

    Raises:
        ValueError: vectors of another length, no images, or images that are not finite.
    """
    check_whole(batch, "batch")
    _load_forward_rules()
    with evaluating(model, params) as (model, parameters):
        images, _ = check_data(images, torch.empty(len(images)), next(iter(parameters.values())))
        names = {name: p.detach() for name, p in parameters.items()}
        tangents = [unflatten(vector, names) for vector in vectors]

        logits, changes = [], []
        with torch.no_grad():
            for part in images.split(batch):

                def forward(values: dict[str, Tensor], part: Tensor = part) -> Tensor:
                    return functional_call(model, values, (part,))

                logits.append(forward(names))
                found = [jvp(forward, (names,), (tangent,))[1] for tangent in tangents]
                changes.append(torch.stack(found) if found else logits[-1].new_zeros(0, *logits[-1].shape))
    return as_double(torch.cat(logits)).cpu(), as_double(torch.cat(changes, 1)).cpu()


@cache
def _load_forward_rules() -> None:
    """Let PyTorch compile its forward-mode rules, for which it calls a function that it deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))


def unflatten(vector: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the pieces of a flat vector (P,), shaped and typed like the parameters.

    Raises:
        ValueError: another length.
    """
    size = sum(p.numel() for p in parameters.values())
    if vector.shape != (size,):
        raise ValueError(
            f"A direction must hold one number for each of the {size} chosen parameters; found shape "
            f"{tuple(vector.shape)}. Rows of `vectors` follow `named_parameters()`."
        )
    pieces = vector.split([p.numel() for p in parameters.values()])
    return {k: v.reshape(p.shape).to(p) for (k, p), v in zip(parameters.items(), pieces, strict=True)}
