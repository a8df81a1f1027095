"""Rules that make sigma small without classifying any better: what a low sigma has to be held against.

A random guesser has equal recalls, so sigma 0. `dilute` mixes a classifier with it; `level` is the best one
can do in this way when only the predicted class is looked at, no logit and no weight.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from lt_lib._checks import as_tensor, as_vector, check_labels
from lt_lib.collapse.etf import generator_of
from lt_lib.posthoc.selection import check_calibration
from lt_lib.reweighting._entry import check_number


def dilute(predictions: Any, share: float, classes: int, seed: int = 0) -> Tensor:
    """Replace each prediction (n,), with chance `share`, by a class drawn uniformly; (n,) int64.

    Args:
        predictions: predicted classes (n,).
        share: between 0 (nothing changes) and 1 (a random guesser).
        classes: C.
        seed: of the draws.

    Raises:
        ValueError: a prediction is outside 0..C-1, or `share` outside 0..1.
    """
    guess = check_labels(as_tensor(predictions, "predictions").detach().cpu(), classes, "predictions")
    check_number(share, "share", low=0, high=1)
    generator = generator_of(seed)
    drawn = torch.randint(classes, guess.shape, generator=generator)
    return torch.where(torch.rand(guess.shape, generator=generator) < share, drawn, guess)


def diluted_accuracy(per_class: Any, share: float) -> Tensor:
    """Return the expected per-class accuracies after `dilute`: (1 - share) a_c + share / C, (C,) float64.

    So sigma becomes (1 - share) sigma, and the balanced accuracy moves on a straight line to 1 / C: a method
    whose point lies on that line, or beyond it, has lowered sigma as a coin would.

    Raises:
        ValueError: `share` outside 0..1, or no vector.
    """
    values = as_vector(per_class, "per_class")
    mixed = check_number(share, "share", low=0, high=1)
    return (1 - mixed) * values + mixed / len(values)


@dataclass(frozen=True)
class Level:
    """A rule that gives every class the same recall on the images that it was made from."""

    relabel: Tensor  # (C, C) float64: chance of the final class (column) given the predicted one (row)
    recall: float  # the common recall, so the balanced accuracy, at sigma 0

    def __call__(self, predictions: Any, seed: int = 0) -> Tensor:
        """Return final classes (n,) int64, drawn for predictions (n,).

        Raises:
            ValueError: a prediction is outside 0..C-1.
        """
        guess = as_tensor(predictions, "predictions").detach().cpu()
        guess = check_labels(guess, len(self.relabel), "predictions")
        bounds = self.relabel.cumsum(1)[guess]
        drawn = torch.rand(len(guess), 1, generator=generator_of(seed), dtype=torch.float64)
        return (drawn >= bounds).sum(1).clamp_max(len(self.relabel) - 1)


def level(predictions: Any, labels: Any, classes: int) -> Level:
    r"""Return the random relabelling of predicted classes with the greatest common recall.

    With R_{ck} the share of class c that is predicted as k, it solves the linear programme
    :math:`\max\tau` subject to :math:`\sum_kR_{ck}Q_{kc}=\tau` for every c, Q row-stochastic. On the images
    it is made from sigma is 0 in expectation, so a method with some sigma on the same images is no
    achievement unless its balanced accuracy or its worst class is above :math:`\tau`. This is the max-min
    point of Theorem T5 for a rule that sees the predicted class alone.

    Args:
        predictions: predicted classes of calibration images, (n,).
        labels: of the images, (n,), each class there.
        classes: C.

    Raises:
        ValueError: see `choose_tau`; predictions that do not fit, or the solver failed.
    """
    truth = check_calibration(labels, classes)
    guess = check_labels(as_tensor(predictions, "predictions").detach().cpu(), classes, "predictions")
    if guess.shape != truth.shape:
        raise ValueError(
            f"`predictions` and `labels` must be equally long; found {len(guess)} and {len(truth)}."
        )
    table = torch.bincount(classes * truth + guess, minlength=classes**2).view(classes, classes).double()
    recalls = (table / table.sum(1, keepdim=True)).numpy()
    equal, stochastic = np.zeros((classes, classes**2 + 1)), np.zeros((classes, classes**2 + 1))
    for c in range(classes):
        equal[c, [k * classes + c for k in range(classes)]] = recalls[c]
        stochastic[c, c * classes : (c + 1) * classes] = 1
    equal[:, -1] = -1
    aim = np.zeros(classes**2 + 1)
    aim[-1] = -1
    found = linprog(
        aim,
        A_eq=np.vstack([equal, stochastic]),
        b_eq=np.concatenate([np.zeros(classes), np.ones(classes)]),
        bounds=(0, 1),
        method="highs",
    )
    if not found.success:
        raise ValueError(f"The linear programme of `level` was not solved: {found.message}")
    relabel = torch.from_numpy(found.x[:-1].reshape(classes, classes).clip(0, 1))
    return Level(relabel / relabel.sum(1, keepdim=True), float(found.x[-1]))
