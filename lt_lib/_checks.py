"""Checks on arguments, each with one sentence: what was found, what is allowed, the way out."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_vector(
    value: Any, name: str, classes: int | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return `value` (tensor, array or list) as a one-dimensional tensor of `dtype`.

    A tensor keeps its device and its gradient.

    Raises:
        ValueError: `value` is not one-dimensional, is empty, or does not hold `classes` entries.
    """
    vector = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if vector.ndim != 1 or len(vector) == 0:
        raise ValueError(
            f"`{name}` must be one-dimensional and not empty; found shape {tuple(vector.shape)}. "
            "Pass one number a class."
        )
    if classes is not None and len(vector) != classes:
        raise ValueError(
            f"`{name}` must hold one number for each of the {classes} classes; found {len(vector)}."
        )
    return vector.to(dtype)


def check_counts(counts: Any, name: str = "class_counts", minimum: int = 1) -> Tensor:
    """Return class counts as an int64 tensor (C,), each at least `minimum`.

    Raises:
        ValueError: a count is fractional or below `minimum`; the class is named.
    """
    vector = as_vector(counts, name)
    whole = vector.round()
    if bool((vector != whole).any()):
        raise ValueError(f"`{name}` must hold whole numbers; found {vector.tolist()[:10]}.")
    low = (whole < minimum).nonzero().flatten().tolist()
    if low:
        raise ValueError(
            f"Class {low[0]} has {int(whole[low[0]])} images in `{name}`, but each class needs at least "
            f"{minimum}. Drop the class, or merge it with another."
        )
    return whole.to(torch.int64)


def check_labels(labels: Tensor, classes: int, name: str = "labels") -> None:
    """Refuse labels outside 0..classes-1 (reads values: call it once on entry, not at each step).

    Raises:
        ValueError: a label is outside the range, or the tensor is not one-dimensional and integer.
    """
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"`{name}` must be one-dimensional whole numbers; found shape {tuple(labels.shape)} "
            f"of {labels.dtype}. Pass class numbers, one an image."
        )
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        value, times = int(outside[0]), int((outside == outside[0]).sum())
        raise ValueError(
            f"`{name}` must be 0..{classes - 1}; found {value} ({times} times). "
            "Renumber them with `np.unique(labels, return_inverse=True)`."
        )


def check_choice(value: Any, choices: Iterable[str], name: str) -> None:
    """Refuse a name that is not among `choices`, listing them and the closest.

    Raises:
        ValueError: `value` is unknown.
    """
    known = sorted(choices)
    if value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise ValueError(f"`{name}` must be one of {', '.join(known)}; found `{value}`.{hint}")


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinite entries (reads values).

    Raises:
        ValueError: an entry is not finite; how many, and where the first stands, is said.
    """
    bad = (~torch.isfinite(tensor)).nonzero()
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"`{name}` must be finite; found {len(bad)} NaN or infinite values, the first at index {where}. "
            "Mend or drop them first."
        )
