"""What losses of several views need besides one batch of logits; the recipes of `lt_lib.training` fill it."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from torch import Tensor


@dataclass(frozen=True)
class MixedViews:
    """Two mixtures of each image with a partner, for the loss `glmc`.

    Branch 0 is global (MixUp), branch 1 local (CutMix). The logits that the loss is called with are the
    re-balanced head's on branch 0.
    """

    partner_labels: Tensor  # (B,) int64, of the images mixed in
    shares: tuple[float, float]  # lambda of each branch: the share of the label of the first image
    local_logits: Tensor  # (B, C) re-balanced head, branch 1
    plain_logits: tuple[Tensor, Tensor]  # each (B, C), plain head
    projections: tuple[Tensor, Tensor]  # each (B, p), h of the paper
    predictions: tuple[Tensor, Tensor]  # each (B, p), u of the paper


@dataclass(frozen=True)
class ContrastiveViews:
    """Embeddings of two more views of each image, and of the classes, for the loss `bcl`; of any length."""

    embeddings: tuple[Tensor, Tensor]  # each (B, p)
    prototypes: Tensor  # (C, p)


Views = MixedViews | ContrastiveViews
Kind = TypeVar("Kind", MixedViews, ContrastiveViews)


def check_views(views: Any, kind: type[Kind], name: str) -> Kind:
    """Return `views` if they are what the loss `name` needs.

    Raises:
        ValueError: they are missing, or something else.
    """
    if not isinstance(views, kind):
        found = "none" if views is None else type(views).__name__
        raise ValueError(
            f"The loss `{name}` needs `features` of type {kind.__name__}, which hold its further views; "
            f"found {found}. Train with `lt_lib.training.train`, whose recipe `{name}` makes them."
        )
    return views


def check_rows(tensor: Tensor, rows: int, columns: int | None, name: str) -> None:
    """Refuse a tensor of the views that is not (rows, columns), or (rows, p) of any p if `columns` is None.

    Raises:
        ValueError: the shape is another, or it holds no floating-point numbers.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        found = str(tensor.dtype) if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
        raise ValueError(f"`{name}` of the views must be a floating-point tensor; found {found}.")
    wrong = tensor.ndim != 2 or len(tensor) != rows or (columns is not None and tensor.shape[1] != columns)
    if wrong:
        wanted = f"({rows}, {'p' if columns is None else columns})"
        raise ValueError(
            f"`{name}` of the views must have shape {wanted}, one row an image or class; found "
            f"{tuple(tensor.shape)}."
        )


def check_pair(pair: Any, rows: int, columns: int | None, name: str) -> int:
    """Check both tensors of a pair by `check_rows`, of equal length, and return that length.

    Raises:
        ValueError: there are not two, or one of them does not fit.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        found = len(pair) if isinstance(pair, tuple | list) else f"a {type(pair).__name__}"
        raise ValueError(f"`{name}` of the views must be two tensors, one a branch; found {found}.")
    check_rows(pair[0], rows, columns, name)
    width: int = pair[0].shape[1]
    check_rows(pair[1], rows, width, name)
    return width


def check_shares(shares: Any) -> None:
    """Refuse label shares that are not two numbers in 0..1.

    Raises:
        ValueError: they are not.
    """
    good = isinstance(shares, tuple | list) and len(shares) == 2
    if not good or not all(isinstance(share, Real) and 0 <= float(share) <= 1 for share in shares):
        raise ValueError(
            "`shares` of the views must be two numbers in 0..1, the first image's share of the label in each "
            f"branch; found {shares!r}."
        )
