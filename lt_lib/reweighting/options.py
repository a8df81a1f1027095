"""The options of inverse reweighting: each point that the paper leaves open, and the two named presets."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_vector, check_choice, check_finite
from lt_lib.reweighting._entry import check_number, check_start

PRIORS = ("uniform", "inverse", "inverse_sqrt")
MEANS = ("class", "sample", "macro", "detached", "running", "epoch")
CLASS_LOSSES = ("batch", "running", "epoch")
REDUCTIONS = ("sample", "class")
MACROS = ("epoch", "step", "off")
MACRO_NORMS = ("classes", "samples", "none")
ALPHA_SCALES = ("fixed", "loss")
_LARGEST = 1e30

# arXiv 2605.10047's text, each open point read as literally as it allows; alpha is the caller's
AS_WRITTEN: dict[str, Any] = {
    "gamma": 1.0,
    "prior": "uniform",
    "through_weights": False,
    "clamp": None,
    "eps": 0.0,
    "mean": "class",
    "class_loss": "batch",
    "reduction": "sample",
    "macro": "epoch",
    "macro_reset": False,
    "start_epoch": 0,
}

# the released code with the arguments of its published commands; 0.8 is its epoch 160 of 200
AS_RELEASED: dict[str, Any] = {
    **AS_WRITTEN,
    "alpha": 0.0,
    "through_weights": True,
    "clamp": 10.0,
    "eps": 1e-8,
    "start_epoch": 0.8,
}


@dataclass(frozen=True)
class Options:
    """Validated options of `InverseReweighting`, whose docstring explains them."""

    alpha: float
    gamma: float
    through_weights: bool
    clamp: float | None
    clamp_after_macro: bool
    eps: float
    normalise: bool
    mean: str
    class_loss: str
    momentum: float
    reduction: str
    macro: str
    macro_reset: bool
    macro_norm: str
    start_epoch: int | float
    count_before_start: bool
    alpha_scale: str

    def __post_init__(self) -> None:
        # plain numbers, also for NumPy's; from `_LARGEST` on float32 overflows, and the weight is the prior
        for name, high in (("alpha", _LARGEST), ("gamma", math.inf), ("eps", _LARGEST)):
            object.__setattr__(self, name, check_number(getattr(self, name), name, low=0, high=high))
        if self.clamp is not None:
            object.__setattr__(self, "clamp", check_number(self.clamp, "clamp", low=0, open_low=True))
        if not 0 <= check_number(self.momentum, "momentum") < 1:
            raise ValueError(f"`momentum` must be in [0, 1); found {self.momentum}. 0 keeps no memory.")
        check_choice(self.mean, MEANS, "mean")
        check_choice(self.class_loss, CLASS_LOSSES, "class_loss")
        check_choice(self.reduction, REDUCTIONS, "reduction")
        check_choice(self.macro, MACROS, "macro")
        check_choice(self.macro_norm, MACRO_NORMS, "macro_norm")
        check_choice(self.alpha_scale, ALPHA_SCALES, "alpha_scale")
        object.__setattr__(self, "start_epoch", check_start(self.start_epoch, "start_epoch"))
        for name in (
            "through_weights",
            "clamp_after_macro",
            "normalise",
            "macro_reset",
            "count_before_start",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be true or false; found {getattr(self, name)!r}.")

    @property
    def relative(self) -> bool:
        """Whether alpha counts squared mean losses of the batch (without gradient), not squared nats."""
        return self.alpha_scale == "loss" and self.alpha > 0


def prior_weights(prior: Any, class_counts: Tensor) -> Tensor:
    """Return prior weights (C,), float64, divided by their mean over classes as in the released code.

    Args:
        prior: "uniform" (ones), "inverse" (1 / n_c), "inverse_sqrt" (n_c^-1/2), or C numbers at least 0.
        class_counts: images of each class, (C,) int64.

    Returns:
        Weights (C,) with mean one.

    Raises:
        ValueError: the name is unknown, the length wrong, a number negative or not finite, or all are 0.
    """
    counts = class_counts.to(torch.float64)
    if isinstance(prior, str):
        check_choice(prior, PRIORS, "prior")
        powers = {"uniform": 0.0, "inverse": -1.0, "inverse_sqrt": -0.5}
        weights = counts.pow(powers[prior])
    else:
        weights = as_vector(prior, "prior", len(counts)).to(counts.device)
        check_finite(weights, "prior")
    if bool((weights < 0).any()) or not bool(weights.sum() > 0):
        raise ValueError(
            f"`prior` must hold numbers at least 0, not all 0; found {weights.tolist()[:10]}. "
            "Pass relative weights: they are divided by their mean."
        )
    weights = weights / weights.max() if bool(weights.sum().isinf()) else weights
    return weights / weights.mean()
