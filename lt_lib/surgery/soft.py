r"""A differentiable variant of surgery: exact derivatives of soft accuracies, steps bounded by energy.

The published loop measures 0/1 accuracies at 2 K displaced weights and bounds the length of the step (arXiv
2605.07790). Here a class's accuracy is replaced by the mean probability of the right label,
:math:`a_c=\frac1{n_c}\sum_{i\in c}\mathrm{softmax}_c(z_i/T)`, whose derivatives along all spikes cost one
forward and one backward pass over the images, whatever K; and the step is bounded by the loss that the
quadratic model adds, :math:`\frac12\sum_k\lambda_k\alpha_k^2\le e`, so that each coefficient is divided by
its curvature. Configurations choose both apart: `SurgeryConfig(method="soft", shape="energy")`.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.func import functional_call

from lt_lib._checks import as_vector, check_counts, check_finite, check_labels
from lt_lib.curvature.basis import products
from lt_lib.curvature.class_gradients import Params, evaluating
from lt_lib.surgery.coefficients import Coefficients, solve_coefficients
from lt_lib.surgery.movement import usual_batch
from lt_lib.surgery.sensitivity import Sensitivity


def soft_sensitivity(
    model: nn.Module,
    vectors: Tensor,
    images: Tensor,
    labels: Tensor,
    classes: int | None = None,
    temperature: float = 1.0,
    params: Params = None,
    batch: int | None = None,
) -> Sensitivity:
    r"""Return the derivatives of the soft class accuracies along each direction, as sensitivities.

    :math:`S_{kc}=q_k^\top\nabla_\theta a_c`. At a low temperature soft accuracies are the accuracies, and
    their derivatives come from the few images on a boundary; at T = 1 every image with an unsure prediction
    speaks, so that an entry never rests on one image that flips. The accuracies beside them are those of the
    predictions (0/1). No standard errors are known (NaN): they would need each image's own derivative.

    Args:
        model: maps (B, ...) to logits (B, C); runs in eval mode and is left as it was.
        vectors: (K, P) rows in the order of `named_parameters()`.
        images: (n, ...) as the network takes them; held out from training.
        labels: (n,) in 0..C-1, each class at least once.
        classes: C; None: as many as there are logits.
        temperature: T > 0.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass, within a class; None: `usual_batch`.

    Returns:
        With method "soft", `eps` of 0 (no step is made) and three passes spent.

    Raises:
        ValueError: rows or labels that do not fit, a class without an image, logits that are not finite, a
            temperature that is not positive, or as `lt_lib.curvature.problem.select`.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"`temperature` must be positive and finite; found {temperature}. 1 is the softmax.")
    with evaluating(model, params) as (network, leaves):
        size = sum(leaf.numel() for leaf in leaves.values())
        if vectors.ndim != 2 or vectors.shape[1] != size or len(images) != len(labels):
            raise ValueError(
                f"`vectors` must be rows of {size} numbers and `labels` one an image; found shape "
                f"{tuple(vectors.shape)}, {len(images)} images and {len(labels)} labels."
            )
        first = next(iter(leaves.values()))
        rows, images = vectors.to(first), images.to(first)
        classes = classes or functional_call(network, leaves, (images[:1],)).shape[1]
        labels = check_labels(labels, classes)
        check_counts(torch.bincount(labels.cpu(), minlength=classes), "labels")
        batch = batch or usual_batch(images)
        found = [
            _one_class(network, leaves, images[labels == c], c, temperature, batch) for c in range(classes)
        ]
        matrix = torch.stack([products(rows, slope).cpu().double() for slope, _ in found], 1)
    check_finite(matrix, "the derivatives of the soft accuracies")
    k = len(vectors)
    return Sensitivity(
        matrix=matrix,
        errors=torch.full_like(matrix, torch.nan),
        flips=torch.zeros(k, classes, dtype=torch.int64),
        eps=torch.zeros(k, dtype=torch.float64),
        accuracy=torch.tensor([share for _, share in found], dtype=torch.float64),
        method="soft",
        audited=0.0,
        dropped=torch.zeros(k, dtype=torch.bool),
        passes=3.0,
    )


def energy_coefficients(
    S: Any, pressure: Any, accuracy: Any, energy: float, values: Any, **guards: Any
) -> Coefficients:
    r"""Return the best step among those that cost at most `energy` nats in the quadratic model.

    :math:`\max_\alpha w^\top S^\top\alpha` subject to :math:`\frac12\sum_k\lambda_k\alpha_k^2\le e` and the
    floors of `solve_coefficients`. In :math:`\beta_k=\sqrt{\lambda_k}\alpha_k` this is its ball of radius
    :math:`\sqrt{2e}`; with no floor in the way :math:`\alpha\propto\Lambda^{-1}Sw`, the gradient divided by
    the curvature. A ball in lengths spends most of its loss on the first spike instead. The sum is the
    quadratic model's loss along eigenvectors; along other orthonormal directions it leaves out their products
    :math:`q_j^\top Hq_k`.

    Args:
        S: (K, C) sensitivities per unit length.
        pressure: (C,) weights.
        accuracy: (C,) at the start.
        energy: e > 0, nats.
        values: (K,) positive curvatures of the directions.
        guards: further arguments of `solve_coefficients`, such as `strong`.

    Raises:
        ValueError: a curvature that is not positive, `energy` not positive, or as `solve_coefficients`.
    """
    curvature = as_vector(values, "values").detach().cpu()
    if not bool((curvature > 0).all()) or not 0 < energy < float("inf"):
        raise ValueError(
            "`values` and `energy` must be positive, since the energy bounds no step along a direction "
            f"without curvature; found values down to {float(curvature.min()):g} and energy {energy:g}."
        )
    unit = curvature.sqrt()
    scaled = torch.as_tensor(S).detach().cpu().double() / unit[:, None]
    found = solve_coefficients(scaled, pressure, accuracy, (2 * energy) ** 0.5, **guards)
    return replace(found, alpha=found.alpha / unit)


def _one_class(
    network: nn.Module, leaves: dict[str, Tensor], images: Tensor, own: int, temperature: float, batch: int
) -> tuple[Tensor, float]:
    """Gradient (P,) of one class's soft accuracy, and its share of right predictions."""
    names, right = list(leaves), 0
    total = torch.zeros(sum(leaf.numel() for leaf in leaves.values())).to(leaves[names[0]])
    for part in images.split(batch):
        logits = functional_call(network, leaves, (part,))
        check_finite(logits.detach(), "the model's logits")
        value = (logits / temperature).softmax(1)[:, own].sum() / len(images)
        slopes = grad(value, list(leaves.values()), materialize_grads=True)
        total += torch.cat([slope.reshape(-1) for slope in slopes])
        right += int((logits.detach().argmax(1) == own).sum())
    return total, right / len(images)
