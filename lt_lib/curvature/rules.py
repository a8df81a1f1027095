"""Which product method is used where: a committed table, never a timing at run time."""

from typing import NamedTuple

METHODS = ("retained", "recompute", "forward_over_reverse", "linearize", "compiled")


class Rule(NamedTuple):
    """One row: the first that fits is taken."""

    device: str  # type of device, "*" for any
    fits: bool  # whether the retained graph fits into the memory limit
    method: str
    channels_last: bool
    reason: str


# `python -m benchmarks.curvature --products --images 64` on one busy AVX2 core (ResNet-20), in gradients of
# the plain model: set-up and one product. retained 1.7, 1.6; recompute 0, 2.9; forward_over_reverse 0, 3.8;
# linearize 32, 1.8. No other device has been measured, so no row prefers `compiled`.
RULES = (
    Rule("cpu", True, "retained", True, "least work a product, one gradient to set up"),
    Rule("cpu", False, "recompute", True, "holds one micro-batch's graph at a time"),
    Rule(
        "cuda", True, "retained", False, "no Python in a product but that of convolutions; not yet measured"
    ),
    Rule("*", True, "retained", False, "needs only a twice differentiable backward; not measured"),
    Rule("*", False, "recompute", False, "holds one micro-batch's graph at a time"),
)
MEMORY_LIMIT = 4 * 2**30  # bytes a retained graph may hold unless the caller says otherwise
RECOMPUTE_SHARE = 4  # a recomputed micro-batch takes at most this part of the limit


def choose(device: str, fits: bool) -> Rule:
    """Return the first rule for this type of device."""
    return next(r for r in RULES if r.device in (device, "*") and r.fits == fits)
