"""Logits as a linear function of the weights: one forward-mode product a direction gives every amplitude."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from lt_lib._checks import as_tensor
from lt_lib.curvature.problem import Problem
from lt_lib.curvature.products import load_forward_mode
from lt_lib.surgery.movement import Evaluator, Params, check_rows, correct

TOGETHER = 16  # directions that share one pass through the network at the start


@dataclass(frozen=True)
class LinearLogits:
    """Logits z + sum_i alpha_i J q_i near the weights at which they were taken."""

    logits: Tensor  # (n, C) at the weights
    changes: Tensor  # (K, n, C) derivatives J q_i
    labels: Tensor  # (n,)

    def at(self, alpha: Any) -> Tensor:
        """Return the linear prediction of the logits (n, C) at coefficients alpha (K,)."""
        weights = as_tensor(alpha, "alpha").to(self.changes)
        if weights.shape != self.changes.shape[:1]:
            raise ValueError(
                f"`alpha` must hold one number for each of {len(self.changes)} directions; found shape "
                f"{tuple(weights.shape)}."
            )
        return self.logits + torch.tensordot(weights, self.changes, 1)

    def class_accuracy(self, alpha: Any) -> Tensor:
        """Return predicted class accuracies (C,) float64 at coefficients alpha (K,)."""
        hits = correct(self.at(alpha), self.labels).double().cpu()
        labels, classes = self.labels.cpu(), self.logits.shape[1]
        return torch.bincount(labels, hits, classes) / torch.bincount(labels, minlength=classes)


def linear_logits(
    model: nn.Module,
    vectors: Tensor,
    images: Tensor,
    labels: Tensor,
    classes: int | None = None,
    params: Params = None,
    batch: int | None = None,
) -> LinearLogits:
    """Return logits and their derivatives along each direction, for accuracies at any amplitude.

    A direction costs about two evaluations of the images (two convolutions for each of the network's).
    Eval mode; the model is left as it was.

    Args:
        model: maps images (B, ...) to logits (B, C).
        vectors: (K, P) in the order of `named_parameters()`.
        images: (n, ...) as the network takes them.
        labels: (n,) in 0..C-1, each class at least once.
        classes: C; None: as many as there are logits.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass; None: as many as `lt_lib.surgery.movement.usual_batch` says.

    Raises:
        ValueError: vectors of another length, a model that forward mode cannot run (one that writes its
            buffers), or as `lt_lib.surgery.class_accuracy_at`.
    """
    evaluator = Evaluator(model, images, labels, classes, params, batch)
    check_rows(vectors, evaluator.problem.size, "vectors")
    return linearised(evaluator, vectors)


def linearised(evaluator: Evaluator, vectors: Tensor) -> LinearLogits:
    """Return what `linear_logits` does, of an evaluator; counts two evaluations a direction and one."""
    load_forward_mode()
    problem = evaluator.problem
    logits, changes = [], []
    with problem.surroundings(), torch.no_grad():
        for images in evaluator.parts(None):
            try:
                blocks = [_products(problem, images, block) for block in vectors.split(TOGETHER)]
            except RuntimeError as error:
                raise ValueError(
                    f"Forward-mode products of `model` fail: {str(error).splitlines()[0]} Take the "
                    'method "screened", which calls the model as it is.'
                ) from error
            logits.append(problem.outputs(problem.theta, images))
            changes.append(torch.cat(blocks))
    evaluator.spent += 2 * len(vectors) * len(evaluator)
    return LinearLogits(torch.cat(logits), torch.cat(changes, 1), evaluator.labels)


def _products(problem: Problem, images: Tensor, vectors: Tensor) -> Tensor:
    """Return J v (k, B, C) of each row of `vectors` (k, P)."""

    def one(vector: Tensor) -> Tensor:
        change: Tensor = jvp(
            lambda theta: problem.outputs(theta, images), (problem.theta,), (problem.split(vector),)
        )[1]
        return change

    rows = vectors.to(problem.theta[0])
    try:
        return vmap(one)(rows)
    except RuntimeError:  # in-place operations on what is the same for all directions
        return torch.stack([one(row) for row in rows])
