"""From a change of logits to the head of a network that gives the changed logits."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lt_lib._checks import as_vector, check_choice, check_finite
from lt_lib.nets.heads import ETFHead, LinearHead

BIASES = ("scale", "keep", "drop")


class UnitLinearHead(LinearHead):
    """Logits `W h / |h| + b`: the linear form of a head that looks at the direction of features alone.

    A cosine head has none of its own that could take other lengths of rows, or a bias.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, C) of features (B, d)."""
        return super().forward(self.inputs(features))

    def inputs(self, features: Tensor) -> Tensor:
        """Return the vectors (B, d) that `weight_matrix` acts on: features on the unit sphere."""
        return normalize(features)


class BatchNormLinearHead(LinearHead):
    """Logits `W u + b` with u = a h + c, or `u = (a h + c) / |a h + c|`: after a head with a BatchNorm.

    In eval mode a BatchNorm is this affine map of each feature; it is frozen here, as buffers.

    Args:
        dim: d, number of features.
        classes: C.
        unit: whether u is on the unit sphere.
    """

    stretch: Tensor  # a, (d,)
    offset: Tensor  # c, (d,)

    def __init__(self, dim: int, classes: int, unit: bool = False) -> None:
        super().__init__(dim, classes)
        self.unit = unit
        self.register_buffer("stretch", torch.ones(dim))
        self.register_buffer("offset", torch.zeros(dim))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, C) of features (B, d)."""
        return super().forward(self.inputs(features))

    def inputs(self, features: Tensor) -> Tensor:
        """Return the vectors u (B, d) that `weight_matrix` acts on."""
        mapped = features * self.stretch + self.offset
        return normalize(mapped) if self.unit else mapped

    @torch.no_grad()
    def freeze(self, norm: nn.Module) -> None:
        """Take the affine map of a BatchNorm in eval mode (or of another such head)."""
        if isinstance(norm, BatchNormLinearHead):
            stretch, offset = norm.stretch, norm.offset
        else:
            assert isinstance(norm, nn.BatchNorm1d)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            stretch = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
            offset = norm.bias.double() - norm.running_mean.double() * stretch
        self.stretch.copy_(stretch)
        self.offset.copy_(offset)


def adjusted_head(head: nn.Module, scales: Any = None, shift: Any = None, bias: str = "scale") -> LinearHead:
    r"""Return a linear head with logits :math:`s_c\,(w_c^\top u) + b'_c + t_c`; the given one stays as it is.

    u is what the head's weight acts on (`head.inputs`). With :math:`b` the head's bias (0 where it has none),
    :math:`b'_c` is :math:`s_c b_c` ("scale", so that the logits are scaled), :math:`b_c` ("keep") or 0
    ("drop").

    - Logit adjustment: `shift=prior_shift(class_counts, tau)`.
    - tau-normalisation: `scales=tau_scales(head.weight_matrix(), tau), bias="drop"`.
    - Temperature T: `scales` of 1 / T; vector scaling and logit bias: `scales` and `shift` of the fit.
    - Learned weight scales: `scales` of `learn_weight_scales`.

    The equivalent is exact, up to rounding, for every head of `lt_lib.nets`: a linear head without bias gets
    one; a cosine head, and an ETF head on the unit sphere, become a `UnitLinearHead`, whose rows are
    `scale * w_c / |w_c|`; an ETF head becomes a `LinearHead` that starts at the frame and is a parameter,
    so a later training would move it. An ETF head with a BatchNorm becomes a `BatchNormLinearHead`, whose
    logits are those of eval mode: its statistics, scale and shift stay as they are now.

    Args:
        head: with `weight_matrix()` (C, d), `bias_vector()` and `inputs(features)`.
        scales: s, (C,); None for ones.
        shift: t, (C,); None for zeros.
        bias: "scale", "keep" or "drop".

    Raises:
        ValueError: the head is of another kind, `scales` or `shift` does not hold C finite numbers, `bias` is
            unknown, or a new weight or bias overflows.
    """
    check_choice(bias, BIASES, "bias")
    weight, old = _linear_form(head)
    factors = _per_class(scales, "scales", weight, 1.0)
    new = torch.zeros_like(factors) if bias == "drop" else old * (factors if bias == "scale" else 1)
    new = new + _per_class(shift, "shift", weight, 0.0)
    changed = _blank(head, weight)
    with torch.no_grad():
        changed.weight.copy_(weight.double() * factors[:, None])
        assert changed.bias is not None
        changed.bias.copy_(new)
        if not bool(torch.isfinite(changed.weight).all() & torch.isfinite(changed.bias).all()):
            raise ValueError(
                f"`scales` and `shift` must leave weights and biases that {weight.dtype} can hold; found one "
                "that overflows. Pass smaller ones, or a head in float64."
            )
    return changed.train(head.training)


def with_head(model: nn.Module, head: nn.Module) -> nn.Module:
    """Return a copy of `model` with `head` (itself, not a copy) in place of its own.

    Raises:
        ValueError: the model has no `head`.
    """
    if not hasattr(model, "head"):
        raise ValueError(
            f"{type(model).__name__} has no `head` that could be replaced. Networks of `lt_lib.nets` have "
            "one; give yours the attributes `features` and `head`."
        )
    changed: Any = copy.deepcopy(model)
    changed.head = head
    found: nn.Module = changed
    return found


def _linear_form(head: Any) -> tuple[Tensor, Tensor]:
    if not all(hasattr(head, name) for name in ("weight_matrix", "bias_vector", "inputs")):
        raise ValueError(
            f"`head` must be linear in what it sees, with `weight_matrix()`, `bias_vector()` and "
            f"`inputs(features)`, as the heads of `lt_lib.nets` are; found {type(head).__name__}. Change its "
            "logits instead."
        )
    weight, bias = head.weight_matrix().detach(), head.bias_vector()
    if bias is None:
        return weight, torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
    return weight, bias.detach().double()


def _blank(head: Any, weight: Tensor) -> LinearHead:
    """Return a linear head, not yet set, that sees what `head` sees in eval mode."""
    classes, dim = weight.shape
    norm = head if isinstance(head, BatchNormLinearHead) else getattr(head, "bn", None)
    if isinstance(head, ETFHead | BatchNormLinearHead) and norm is not None:
        normed = BatchNormLinearHead(dim, classes, head.unit).to(weight)
        normed.freeze(norm)
        return normed
    return (UnitLinearHead if _looks_at_direction(head, weight) else LinearHead)(dim, classes).to(weight)


def _looks_at_direction(head: Any, weight: Tensor) -> bool:
    probe = torch.linspace(1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device)[None]
    with torch.no_grad():
        seen = copy.deepcopy(head).eval().inputs(probe)  # a BatchNorm would take the probe for a batch
    if torch.equal(seen, probe):
        return False
    if torch.allclose(seen, normalize(probe)):
        return True
    raise ValueError(
        f"`head` must act on the features or on their direction; found {type(head).__name__}, which does "
        "neither, so that no linear head gives its logits. Change its logits instead."
    )


def _per_class(value: Any, name: str, weight: Tensor, default: float) -> Tensor:
    if value is None:
        return torch.full((len(weight),), default, dtype=torch.float64, device=weight.device)
    vector = as_vector(value, name, len(weight)).detach().to(weight.device)
    check_finite(vector, name)
    return vector
