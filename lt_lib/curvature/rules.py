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


# In units of one gradient of the plain model (ResNet-20, 256 images, one AVX2 core; benchmarks/curvature.py):
# retained 1.5 to 1.8 a product and 1.0 to 1.3 once; linearize 2.1 and 10 once; recompute 3 a product.
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
