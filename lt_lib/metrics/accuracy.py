"""Accuracy by class, from totals: a ragged last batch cannot distort it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, as_vector, check_counts, check_finite, check_labels


@dataclass(frozen=True)
class Accuracy:
    """Accuracies as shares in 0..1; means over classes skip the absent ones, which are named."""

    plain: float  # correct / n
    balanced: float  # mean of the per-class accuracies of the present classes
    sigma: float  # population standard deviation of the same
    worst: float  # smallest of the same
    per_class: Tensor  # (C,) float64, nan for an absent class
    absent: tuple[int, ...]  # classes without an image in `labels`


def per_class_accuracy(predictions: Any, labels: Any, classes: int) -> Tensor:
    """Share of each class's images that were predicted right (recall).

    Args:
        predictions: (n,) predicted classes, or (n, C) logits whose largest entry is the prediction.
        labels: (n,) true classes.
        classes: number of classes C.

    Returns:
        (C,) float64 on the CPU, nan for a class that `labels` does not hold.

    Raises:
        ValueError: lengths differ, a class is outside 0..C-1, a logit is NaN or infinite, or n is 0.
    """
    right, total = _totals(predictions, labels, classes)
    return right / total  # 0 / 0 is the nan of an absent class


def accuracy(predictions: Any, labels: Any, classes: int) -> Accuracy:
    """Plain and balanced accuracy, spread over classes (sigma) and the worst class, of `per_class_accuracy`.

    Pass all predictions of a part at once, not a mean over batches.

    Raises:
        ValueError: as `per_class_accuracy`.
    """
    right, total = _totals(predictions, labels, classes)
    per_class, present = right / total, total > 0
    seen = per_class[present]
    return Accuracy(
        plain=float(right.sum() / total.sum()),
        balanced=float(seen.mean()),
        sigma=float(seen.std(correction=0)),
        worst=float(seen.min()),
        per_class=per_class,
        absent=tuple((~present).nonzero().flatten().tolist()),
    )


def geometric_mean(per_class: Any, correction: float = 0.0) -> float:
    """Geometric mean of the per-class accuracies (C,); absent classes (nan) are skipped.

    One class at 0 makes it 0; `correction` stands in for such zeros, as in imbalanced-learn.

    Raises:
        ValueError: every class is absent, or an accuracy or `correction` is outside 0..1.
    """
    values = as_vector(per_class, "per_class")
    values = values[~values.isnan()]
    if len(values) == 0 or bool(((values < 0) | (values > 1)).any()) or not 0 <= correction <= 1:
        raise ValueError(
            "`per_class` and `correction` must lie in 0..1 with a class present; found "
            f"{values.tolist()[:10]} and {correction}. Pass the shares that `per_class_accuracy` returns."
        )
    values = torch.where(values == 0, torch.full_like(values, correction), values)
    return float(values.log().mean().exp())


def shot_groups(counts: Any, many: float = 100, few: float = 20) -> dict[str, tuple[int, ...]]:
    """Classes by training images n: many n > `many`, medium `few` <= n <= `many`, few n < `few`.

    The bounds of Liu et al. (arXiv 1904.05160) and most code; some released code counts a class of exactly
    20 images as few-shot (pass `few=21` for that), so state the bounds beside each table.

    Returns:
        "many", "medium", "few", each a tuple of class numbers, possibly empty.

    Raises:
        ValueError: a count is below 1, or `few` exceeds `many` + 1, so that the groups would overlap.
    """
    if not few <= many + 1:
        raise ValueError(
            f"`few` must be at most `many` + 1; found few = {few} and many = {many}. Swap or change the "
            "bounds."
        )
    n = check_counts(counts, "counts")
    masks = {"many": n > many, "medium": (n >= few) & (n <= many), "few": n < few}
    return {group: tuple(mask.nonzero().flatten().tolist()) for group, mask in masks.items()}


def shot_accuracy(per_class: Any, counts: Any, many: float = 100, few: float = 20) -> dict[str, float | None]:
    """Mean per-class accuracy of each group of `shot_groups`; None for a group without a class to show.

    Args:
        per_class: (C,) accuracies, nan for absent classes, which are skipped.
        counts: (C,) training images.
        many: a class is many-shot above this.
        few: a class is few-shot below this.

    Raises:
        ValueError: lengths differ, or as `shot_groups`.
    """
    groups = shot_groups(counts, many, few)
    values = as_vector(per_class, "per_class", classes=sum(len(g) for g in groups.values()))
    shown = {group: values[list(members)] for group, members in groups.items()}
    shown = {group: v[~v.isnan()] for group, v in shown.items()}
    return {group: float(v.mean()) if len(v) else None for group, v in shown.items()}


def _totals(predictions: Any, labels: Any, classes: int) -> tuple[Tensor, Tensor]:
    """Right predictions and images of each class, float64 (C,) each."""
    truth, guess = as_tensor(labels, "labels").detach().cpu(), as_tensor(predictions, "predictions").detach()
    if guess.ndim == 0 or guess.shape[:1] != truth.shape or len(truth) == 0:
        raise ValueError(
            f"`predictions` and `labels` must be equally long and not empty; found shapes "
            f"{tuple(guess.shape)} and {tuple(truth.shape)}. Pass one prediction an image."
        )
    truth = check_labels(truth, classes)
    if guess.ndim == 2:
        if guess.shape[1] != classes:
            raise ValueError(
                f"`predictions` of logits must have one column for each of the {classes} classes; found "
                f"shape {tuple(guess.shape)}. Pass logits (n, C), or predicted classes (n,)."
            )
        check_finite(guess, "predictions")
        guess = guess.argmax(1)
    guess = check_labels(guess.cpu(), classes, "predictions")
    total = torch.bincount(truth, minlength=classes)
    right = torch.bincount(truth[guess == truth], minlength=classes)
    return right.to(torch.float64), total.to(torch.float64)
