"""Cross-fitting: every image is judged by a correction that was fitted without it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lt_lib.collapse.etf import generator_of
from lt_lib.posthoc.adjustment import check_logits
from lt_lib.posthoc.selection import check_calibration

Change = Callable[[Tensor], Tensor]


def folds_of(labels: Any, folds: int, classes: int, seed: int = 0) -> Tensor:
    """Return the fold of each image, (n,) int64 in 0..folds-1; within a class folds differ by one at most.

    Args:
        labels: (n,), each class there.
        folds: at least 2.
        classes: C.
        seed: of the draw.

    Raises:
        ValueError: see `choose_tau`; or a class has fewer than 2 images, so that leaving one of its folds out
            would leave none, or fewer folds than 2.
    """
    truth = check_calibration(labels, classes)
    counts = torch.bincount(truth, minlength=classes)
    if isinstance(folds, bool) or not isinstance(folds, int):
        raise ValueError(f"`folds` must be a whole number; found {folds!r}.")
    if folds < 2 or int(counts.min()) < 2:
        raise ValueError(
            "Cross-fitting needs 2 folds and 2 images of each class or more; found "
            f"{folds} folds and {int(counts.min())} images of class {int(counts.argmin())}."
        )
    generator, fold = generator_of(seed), torch.empty_like(truth)
    for c in range(classes):
        ours = (truth == c).nonzero().flatten()
        # a small class starts at a drawn fold, so that not always the last folds lack it
        first = int(torch.randint(folds, (1,), generator=generator))
        fold[ours[torch.randperm(len(ours), generator=generator)]] = (torch.arange(len(ours)) + first) % folds
    return fold


def cross_fitted(
    fit: Callable[[Tensor, Tensor], Change], logits: Any, labels: Any, folds: int = 5, seed: int = 0
) -> Tensor:
    """Return changed logits (n, C), each image's by the change fitted to the other folds.

    What is measured on them is not flattered by the fit, and all n images serve both ends: the way to judge a
    correction where there is no test part to spare. The folds' corrections differ a little, so it judges the
    procedure with n (1 - 1 / folds) images, not one correction.

    Args:
        fit: maps logits (m, C) and labels (m,) to a change of logits, such as `fit_logit_bias`.
        logits: of calibration images, (n, C).
        labels: of the images, (n,), each class there.
        folds: at least 2, drawn within classes.
        seed: of the draw.

    Raises:
        ValueError: see `folds_of`; or shapes that do not fit.
    """
    values = check_logits(logits)
    fold = folds_of(labels, folds, values.shape[1], seed).to(values.device)
    if len(fold) != len(values):
        raise ValueError(f"`logits` and `labels` must be equally long; found {len(values)} and {len(fold)}.")
    truth = torch.as_tensor(labels).to(values.device)
    changed = torch.empty_like(values)
    for f in range(folds):
        ours = fold == f
        if bool(ours.any()):
            changed[ours] = fit(values[~ours], truth[~ours])(values[ours]).to(changed)
    return changed
