"""How many independent trade-offs between classes a sensitivity matrix offers, against pure noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, check_finite
from lt_lib.collapse.etf import generator_of
from lt_lib.metrics.intervals import Interval


@dataclass(frozen=True)
class RankSummary:
    """Singular values of a sensitivity matrix S = U diag(s) V^T and its ranks; r = min(K, C)."""

    effective: float  # entropic, of p_i = s_i^2 / sum s^2
    roy_vetterli: float  # entropic, of s_i / sum s, as in the paper that is cited for it
    algebraic: int  # singular values above rounding: what bounds the trade-offs
    values: Tensor  # (r,) float64 singular values, largest first
    shares: Tensor  # (r,) float64, p_i: share of the squared entries of S
    spikes: Tensor  # (K, r) float64, columns u_i over the directions
    classes: Tensor  # (r, C) float64, rows v_i over the classes; the largest entry is positive
    gram: Tensor  # (C, C) float64, S^T S: how alike the spikes move two classes
    nulls: dict[str, Interval]  # effective rank of noise: "gaussian", "permuted" and, with errors, "errors"
    class_names: tuple[str, ...]

    @property
    def overlap(self) -> Tensor:
        """Cosines (C, C) between the classes' columns of S; nan for a class that no direction moves."""
        norms = self.gram.diagonal().sqrt()
        cosines = self.gram / (norms[:, None] * norms)
        return torch.where(cosines.isnan(), cosines, cosines.clamp(-1, 1))

    def axis(self, index: int, classes: int = 4) -> str:
        """Write trade-off `index` by its strongest classes: "cat +0.71, dog -0.62"."""
        row = self.classes[index]
        order = row.abs().argsort(descending=True, stable=True)[:classes].tolist()
        return ", ".join(f"{self.class_names[j]} {float(row[j]):+.2f}" for j in order)


def effective_rank(S: Any) -> float:
    """Return `exp(-sum_i p_i log p_i)` with `p_i = s_i^2 / sum_j s_j^2` (MB6, arXiv 2605.07790).

    Between 1 and min(K, C). Roy and Vetterli (2007), cited for it, take `s_i / sum_j s_j` instead. A high
    value may be noise: compare it with `rank_summary(S).nulls`.

    Args:
        S: (K, C) sensitivities; singular values s.

    Raises:
        ValueError: `S` is not a finite real matrix, or is zero.
    """
    return float(_entropic(torch.linalg.svdvals(_matrix(S))))


def rank_summary(
    S: Any,
    errors: Any = None,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 400,
    level: float = 0.95,
) -> RankSummary:
    """Return the ranks of S, its trade-off axes, and the effective ranks of matrices of pure noise.

    Nulls, `draws` matrices each, of which the mean and the central `level` are given: "gaussian" (independent
    standard normal entries of the same shape; about 5.6 for 9 x 10), "permuted" (the entries of S in random
    places: the same values without structure), "errors" (normal entries with the standard errors of S: what
    would be measured if no class moved).

    Args:
        S: (K, C) sensitivities.
        errors: (K, C) standard errors of S, at least 0, not all of them 0; None: that null is left out.
        class_names: C names; None: "0", "1", ...
        seed: of the nulls.
        draws: matrices of noise in each null, at least 2.
        level: coverage of their intervals.

    Raises:
        ValueError: `S` is not a finite real matrix or is zero, or another argument does not fit it.
    """
    matrix = _matrix(S)
    names = _names(class_names, matrix.shape[1])
    if draws < 2 or not 0 < level < 1:
        raise ValueError(
            f"`draws` must be at least 2 and `level` between 0 and 1; found {draws} and {level:g}."
        )
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    strongest = v.gather(1, v.abs().argmax(1, keepdim=True))
    sign = torch.where(strongest < 0, -1.0, 1.0)
    return RankSummary(
        effective=float(_entropic(s)),
        roy_vetterli=float(_entropic(s, power=1)),
        algebraic=int((s > s[0] * max(matrix.shape) * torch.finfo(s.dtype).eps).sum()),
        values=s,
        shares=_shares(s, 2),
        spikes=u * sign.T,
        classes=v * sign,
        gram=matrix.T @ matrix,
        nulls=_nulls(matrix, errors, seed, draws, level),
        class_names=names,
    )


def _matrix(S: Any) -> Tensor:
    matrix = as_tensor(S, "S").detach().cpu()
    if matrix.ndim != 2 or 0 in matrix.shape or matrix.is_complex():
        raise ValueError(
            "`S` must be a real matrix (K, C), a row for each direction and a column for each class; found "
            f"shape {tuple(matrix.shape)} of {matrix.dtype}."
        )
    check_finite(matrix, "S")
    matrix = matrix.to(torch.float64)
    if not bool(matrix.any()):
        raise ValueError(
            "`S` is zero, so its rank says nothing: no direction moved a class. Take a longer `eps`."
        )
    return matrix


def _names(class_names: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    names = tuple(map(str, range(classes) if class_names is None else class_names))
    if len(names) != classes:
        raise ValueError(f"`class_names` must hold {classes} names, one for each column; found {len(names)}.")
    return names


def _shares(values: Tensor, power: int) -> Tensor:
    weights = (values / values.amax(-1, keepdim=True)).pow(power)  # scaled first: squares might overflow
    return weights / weights.sum(-1, keepdim=True)


def _entropic(values: Tensor, power: int = 2) -> Tensor:
    """Return exp of the entropy of the shares of s_i^power in their sum, for values (..., r)."""
    return torch.special.entr(_shares(values, power)).sum(-1).exp()


def _nulls(matrix: Tensor, errors: Any, seed: int, draws: int, level: float) -> dict[str, Interval]:
    generator = generator_of(seed)
    shape = (draws, *matrix.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    order = torch.rand(draws, matrix.numel(), generator=generator).argsort(1)
    matrices = {"gaussian": noise, "permuted": matrix.flatten()[order].reshape(shape)}
    if errors is not None:
        matrices["errors"] = noise * _errors(errors, matrix)
    return {name: _spread(drawn, level) for name, drawn in matrices.items()}


def _errors(errors: Any, matrix: Tensor) -> Tensor:
    sizes = as_tensor(errors, "errors").detach().cpu().to(torch.float64)
    check_finite(sizes, "errors")
    if sizes.shape != matrix.shape or bool((sizes < 0).any()) or not bool(sizes.any()):
        raise ValueError(
            f"`errors` must be standard errors of the shape {tuple(matrix.shape)} of `S`, at least 0 and "
            f"not all 0; found shape {tuple(sizes.shape)}, smallest {float(sizes.min()):g}. Pass None to "
            "leave them out."
        )
    return sizes


def _spread(matrices: Tensor, level: float) -> Interval:
    ranks = _entropic(torch.linalg.svdvals(matrices))
    tail = (1 - level) / 2
    low, high = torch.quantile(ranks, torch.tensor([tail, 1 - tail], dtype=ranks.dtype)).tolist()
    return Interval(float(ranks.mean()), low, high, level, len(ranks))
