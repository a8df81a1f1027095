"""Checks on arguments, each with one sentence: what was found, what is allowed, the way out."""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from operator import index
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

_EXACT = 2**53  # from here on float64 skips whole numbers


def as_tensor(value: Any, name: str) -> Tensor:
    """Return `value` as a tensor: itself if it is one (device and gradient kept), else from an array or list.

    Raises:
        ValueError: `value` holds something else than numbers, or is ragged.
    """
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
        if array.dtype == object and array.size and all(isinstance(v, Real) for v in array.flat):
            array = array.astype(np.float64)  # whole numbers beyond 64 bits, fractions
        if array.dtype.kind in "biufc":
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            return torch.as_tensor(np.require(array, requirements=["C", "W"]))
    except (ValueError, TypeError, RuntimeError, OverflowError):
        pass
    raise ValueError(
        f"`{name}` must hold numbers in a tensor, an array or a list whose rows are equally long; found "
        f"{shorten(repr(value), 60, placeholder=' ...')}. Convert it with `np.asarray(..., dtype=float)`."
    )


def as_vector(
    value: Any, name: str, classes: int | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return `value` (tensor, array or list) as a one-dimensional tensor of `dtype`.

    A tensor keeps its device and its gradient.

    Raises:
        ValueError: `value` is not real numbers in one dimension, is empty, or does not hold `classes`
            entries.
    """
    vector = as_tensor(value, name)
    if vector.is_complex():
        raise ValueError(f"`{name}` must hold real numbers; found {vector.dtype}. Pass the real part.")
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
        ValueError: a count is fractional, not finite, below `minimum` (the class is named) or too large to
            be exact in float64 (2^53).
    """
    vector = as_vector(counts, name)
    check_finite(vector, name)
    if bool((vector.abs() >= _EXACT).any()):
        raise ValueError(
            f"`{name}` must lie below 2^53, where float64 is exact; found {float(vector.abs().max()):g}. "
            "Pass numbers of images."
        )
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


def check_labels(labels: Tensor, classes: int, name: str = "labels") -> Tensor:
    """Return labels as int64; refuse them outside 0..classes-1 (reads values: once on entry, not each step).

    Raises:
        ValueError: a label is outside the range, or the tensor is not one-dimensional and integer.
    """
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"`{name}` must be one-dimensional whole numbers; found shape {tuple(labels.shape)} "
            f"of {labels.dtype}. Pass class numbers, one an image."
        )
    labels = labels.to(torch.int64)  # first: a comparison in uint8 would wrap `classes`
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        value, times = int(outside[0]), int((outside == outside[0]).sum())
        raise ValueError(
            f"`{name}` must be 0..{classes - 1}; found {value} ({times} times). "
            "Renumber them with `np.unique(labels, return_inverse=True)`."
        )
    return labels


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


def check_whole(value: Any, name: str, low: int = 1) -> int:
    """Return `value` as an int; refuse what is none, a boolean or below `low`.

    Raises:
        ValueError: it is refused.
    """
    try:
        number = low - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = low - 1
    if number < low:
        raise ValueError(f"`{name}` must be a whole number of at least {low}; found {value!r}.")
    return number


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
