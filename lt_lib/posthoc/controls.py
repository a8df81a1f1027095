"""The corrections that surgery is held against, by name: from the same calibration images, or from none."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lt_lib._checks import check_choice
from lt_lib.posthoc.adjustment import logit_adjustment
from lt_lib.posthoc.bias_path import equal_recall_path
from lt_lib.posthoc.gaming import level
from lt_lib.posthoc.last_layer import fit_last_layer
from lt_lib.posthoc.norms import tau_normalise
from lt_lib.posthoc.scaling import fit_logit_bias, fit_temperature, fit_vector_scaling
from lt_lib.posthoc.selection import check_calibration, choose_tau

RIDGE = 0.01  # of vector scaling and of a new last layer, fixed beforehand
_SURE = 20.0  # logit of an answer that comes without probabilities


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a network says of n images."""

    logits: Tensor  # (n, C)
    features: Tensor  # (n, d), what the head's weight acts on


@dataclass(frozen=True, eq=False)
class Known:
    """What a correction may use."""

    outputs: Outputs  # of the calibration images
    labels: Tensor  # (n,), theirs
    class_counts: Tensor  # (C,), of the training images
    weight: Tensor  # (C, d), of the trained head
    seed: int = 0  # of rules that draw at random


Control = Callable[[Known, Outputs], Tensor]


def _adjusted(known: Known, outputs: Outputs, tau: float) -> Tensor:
    return logit_adjustment(outputs.logits, known.class_counts, tau)


def _normalised(known: Known, outputs: Outputs, tau: float) -> Tensor:
    return outputs.features @ tau_normalise(known.weight, tau).to(outputs.features).T


def _chosen(rule: Callable[[Known, Outputs, float], Tensor], known: Known, test: Outputs) -> Tensor:
    """Apply a rule with the tau that has the best balanced accuracy on the calibration images."""
    classes = known.outputs.logits.shape[1]
    found = choose_tau(lambda tau: rule(known, known.outputs, tau), known.labels, classes)
    return rule(known, test, found.tau)


def _vector_scaling(known: Known, test: Outputs) -> Tensor:
    return fit_vector_scaling(known.outputs.logits, known.labels, True, RIDGE)(test.logits)


def _equal_recalls(known: Known, test: Outputs) -> Tensor:
    path = equal_recall_path(known.outputs.logits, known.labels)
    return path.scaling(path.least_sigma())(test.logits)


def _level(known: Known, test: Outputs) -> Tensor:
    classes = known.outputs.logits.shape[1]
    rule = level(known.outputs.logits.argmax(1), known.labels, classes)
    return _SURE * torch.eye(classes)[rule(test.logits.argmax(1), known.seed)]


def new_last_layer(known: Known, test: Outputs, ridge: float = RIDGE) -> Tensor:
    """Return logits (n, C) of a last layer fitted to the calibration images, see `fit_last_layer`.

    Args:
        known: what it is fitted to; `weight` is what it is pulled to.
        test: features to apply it to.
        ridge: strength of the pull.
    """
    classes = known.outputs.logits.shape[1]
    found = fit_last_layer(known.outputs.features, known.labels, classes, ridge, start=known.weight)
    return found(test.features)


_CONTROLS: dict[str, Control] = {
    "temperature": lambda k, t: fit_temperature(k.outputs.logits, k.labels)(t.logits),
    "bias fit": lambda k, t: fit_logit_bias(k.outputs.logits, k.labels)(t.logits),
    "vector scaling": _vector_scaling,
    "adjustment": lambda k, t: _adjusted(k, t, 1.0),
    "adjustment, fitted": lambda k, t: _chosen(_adjusted, k, t),
    "τ-norm": lambda k, t: _chosen(_normalised, k, t),
    "last layer": new_last_layer,
    "equal recalls": _equal_recalls,
    "level rule": _level,
}
CONTROLS = tuple(_CONTROLS)


def control(name: str, known: Known, test: Outputs) -> Tensor:
    """Return the test logits (n, C) that a correction makes.

    - "temperature": `fit_temperature`; changes no prediction.
    - "bias fit": `fit_logit_bias`, balanced (Theorem T5).
    - "vector scaling": `fit_vector_scaling`, balanced, with `RIDGE`.
    - "adjustment": `logit_adjustment` at tau = 1, without any calibration image; "adjustment, fitted": with
      the tau of the best balanced accuracy on them.
    - "τ-norm": `tau_normalise` with a tau found likewise, without a bias as in its source.
    - "last layer": `new_last_layer`.
    - "equal recalls": the bias of least sigma in `equal_recall_path`, and "level rule": `level`, random
      answers; both make sigma small on the calibration images, whatever it costs.

    Args:
        name: one of `CONTROLS`.
        known: what the correction may use.
        test: outputs to correct.

    Raises:
        ValueError: an unknown name, or as the named function.
    """
    check_choice(name, CONTROLS, "name")
    check_calibration(known.labels, known.outputs.logits.shape[1])
    return _CONTROLS[name](known, test)
