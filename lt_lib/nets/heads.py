"""Classifier heads: linear, cosine, and a simplex ETF that is never trained.

Each head is linear in `inputs(h)`: its logits are `inputs(h) @ weight_matrix().T + bias_vector()`. Collapse
metrics of a head take `inputs(h)` as features (for a linear head, and an ETF head without options, h itself).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from lt_lib.collapse.etf import generator_of, simplex_etf

HEAD_NAMES = ("linear", "cosine", "etf")
HEAD_OPTIONS = {"linear": ("bias",), "cosine": ("scale",), "etf": ("scale", "unit", "batch_norm")}


class LinearHead(nn.Module):
    """Logits `W h + b`; W starts normal with variance 2/d (He et al. 2015), b at 0.

    Args:
        dim: d, number of features.
        classes: C.
        bias: whether b exists.
        seed: of W, drawn from a generator of its own.
    """

    def __init__(self, dim: int, classes: int, bias: bool = True, seed: int | torch.Generator = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(_normal(classes, dim, seed))
        self.bias = nn.Parameter(torch.zeros(classes)) if bias else None

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, C) of features (B, d)."""
        return linear(features, self.weight, self.bias)

    def inputs(self, features: Tensor) -> Tensor:
        """Return the vectors (B, d) that `weight_matrix` acts on: the features themselves."""
        return features

    def weight_matrix(self) -> Tensor:
        """Return W, (C, d)."""
        return self.weight

    def bias_vector(self) -> Tensor | None:
        """Return b, (C,), or None."""
        return self.bias


class CosineHead(nn.Module):
    """Logits `scale * cos(w_c, h)`, so within +-scale; no bias.

    The released code of arXiv 2605.10047 uses scale 30. Feature length carries no information here: the
    logit scale of Theorem T1 is bounded by `scale`.

    Args:
        dim: d, number of features.
        classes: C.
        scale: s > 0.
        seed: of W, drawn from a generator of its own.

    Raises:
        ValueError: scale not positive.
    """

    def __init__(self, dim: int, classes: int, scale: float = 30.0, seed: int | torch.Generator = 0) -> None:
        super().__init__()
        self.scale = _positive(scale)
        self.weight = nn.Parameter(_normal(classes, dim, seed))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, C) of features (B, d); a zero feature gets zero logits."""
        return self.scale * linear(normalize(features), normalize(self.weight))

    def inputs(self, features: Tensor) -> Tensor:
        """Return the vectors (B, d) that `weight_matrix` acts on: features on the unit sphere."""
        return normalize(features)

    def weight_matrix(self) -> Tensor:
        """Return `scale * w_c / |w_c|`, (C, d)."""
        return self.scale * normalize(self.weight)

    def bias_vector(self) -> None:
        """Return None: a cosine head has no bias."""
        return None


class ETFHead(nn.Module):
    """Logits `scale * E h` for a fixed simplex ETF E with unit rows (Yang et al. 2022); no bias.

    E is not a parameter but a buffer: a checkpoint carries it, and a device move takes it along. With `unit`
    the features go to the unit sphere first, so that logits are cosines times `scale`: the setting of the
    dot-regression loss. With `batch_norm` a BatchNorm (scale and shift are trained) comes before that, as in
    the code released with that paper: features behind a ReLU are not negative, so without it they cannot
    reach a centred frame.

    Args:
        dim: d, at least C - 1.
        classes: C.
        scale: length of the rows, omega of Theorem T4.
        seed: of the frame's rotation, drawn from a generator of its own.
        unit: whether features are divided by their length (a zero feature stays 0).
        batch_norm: whether they go through a BatchNorm first.

    Raises:
        ValueError: dim < C - 1, where no simplex ETF exists (the NC2 floor is named); scale not positive.
    """

    weight: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        scale: float = 1.0,
        seed: int | torch.Generator = 0,
        unit: bool = False,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.unit = unit
        self.bn = nn.BatchNorm1d(dim) if batch_norm else None
        frame = _positive(scale) * simplex_etf(classes, dim, seed)
        self.register_buffer("weight", frame.to(torch.get_default_dtype()))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, C) of features (B, d)."""
        return linear(self.inputs(features), self.weight)

    def inputs(self, features: Tensor) -> Tensor:
        """Return the vectors (B, d) that `weight_matrix` acts on; in train mode `batch_norm` sees a batch."""
        features = features if self.bn is None else self.bn(features)
        return normalize(features) if self.unit else features

    def weight_matrix(self) -> Tensor:
        """Return `scale * E`, (C, d), a buffer."""
        return self.weight

    def bias_vector(self) -> None:
        """Return None: the ETF head has no bias."""
        return None


def _normal(classes: int, dim: int, seed: int | torch.Generator) -> Tensor:
    return torch.randn(classes, dim, generator=generator_of(seed)) * math.sqrt(2 / dim)


def _positive(scale: float) -> float:
    if not 0 < scale < math.inf:
        raise ValueError(f"`scale` must be positive and finite; found {scale}.")
    return scale
