r"""Which images need no evaluation at displaced weights, by thresholds set on a random audited sample.

The margin g = z_y - max_{b != y} z_b of an image is positive where it is classified correctly. A *predictor*
p of the displaced margin (the margin at the start, or a linear extrapolation) decides an image by its sign if
|p| is large. How large is read off the audit A, a random share a of the images, all of them evaluated: the
threshold is the largest |p| in A at which the error |g - p|, times a factor s > 1, reached |p|; and not less
than s times the largest error among the quarter of A with the smallest |p|, whose errors count where flips
are too rare for A to hold one.

What this is worth does not depend on how margins are distributed, since A is drawn at random: of the images
left out, the expected number with s |g - p| >= |p| is at most sum_{k >= 1} (1 - a)^k = (1 - a) / a, whatever
n (the k-th of them in order of |p| lies above the threshold only if it and the k - 1 before it escaped A).
Those that flip are among these, and fewer: for a flip |g - p| >= |p|.
"""

import math

import torch
from torch import Tensor

from lt_lib.collapse.metrics import as_double

# on a long-tailed ResNet-8 and 5,000 images 2 leaves out 0.02 of 280 flips a direction, and 1.5 leaves out
# 0.2 in a seventh less time; but on 400 to 2,000 images 1.5 had up to 6 wrong over 9 directions
SAFETY = 2.0


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return z_y - max_{b != y} z_b, (n,): positive exactly where the prediction is right.

    A tie that goes to y, the first of equals, gives the least positive number; a logit that is not finite
    gives -inf.
    """
    own = logits.gather(1, labels[:, None])
    rest = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    margin = own[:, 0] - rest
    won = (margin == 0) & (logits.argmax(1) == labels)
    margin = torch.where(won, torch.finfo(margin.dtype).tiny, margin)
    return torch.where(logits.isfinite().all(1), margin, -math.inf)


def audit_sample(n: int, share: float, seed: int, least: int = 200) -> Tensor:
    """Return the sorted positions of a random sample: ceil(share n) images, `least` at least, n at most.

    Raises:
        ValueError: a share outside (0, 1].
    """
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"`audit` must be a share in (0, 1]; found {share}. A tenth (0.1) is usual.")
    size = min(n, max(math.ceil(share * n), least))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[:size].sort().values


def thresholds(predicted: Tensor, found: Tensor, safety: float = SAFETY) -> tuple[float, Tensor]:
    """Return the threshold of |p| (module docstring), and for each audited image that of the others.

    Args:
        predicted: p, (m,) margins of the audited images.
        found: g, (m,) their margins by evaluation.
        safety: s, above 1.

    Returns:
        The threshold, and (m,) thresholds had this image not been in the audit: what leave-one-out counts of
        wrong decisions need. Infinite where there is no image to go by.
    """
    size = as_double(predicted.abs())
    error = (as_double(found) - as_double(predicted)).abs().nan_to_num(math.inf)
    near = torch.where(safety * error >= size, size, 0.0)
    low = torch.zeros_like(size, dtype=torch.bool)
    low[size.argsort()[: math.ceil(len(size) / 4)]] = True
    score = torch.maximum(near, torch.where(low, safety * error, 0.0))
    if len(score) < 2:
        return math.inf, torch.full_like(score, math.inf)
    first, second = score.topk(2).values
    others = torch.where(score == first, second, first)
    return float(first), others


def undecided(predicted: Tensor, threshold: float) -> Tensor:
    """Return where |p| does not exceed the threshold, or is not finite: those images are to be evaluated."""
    return (predicted.abs() <= threshold) | ~predicted.isfinite()


def missed(predicted: Tensor, found: Tensor, others: Tensor) -> Tensor:
    """Return which audited images (m,) would have been decided wrongly by the threshold of the others."""
    decided = ~(as_double(predicted.abs()) <= others) & predicted.isfinite()
    return decided & ((predicted > 0) != (found > 0))


def within_noise(wrong: Tensor, audited: int, n: int, flips: Tensor) -> Tensor:
    """Return where wrong outcomes, extrapolated from the audit to all, stay within the noise of the flips.

    A count of flips F has the standard error sqrt(F); the audit's `wrong` stand for wrong * n / audited.

    Args:
        wrong: (K,) audited images whose outcome was wrong.
        audited: how many were audited.
        n: images in all.
        flips: (K,) images that flipped.
    """
    return wrong.double() * n / audited <= flips.double().sqrt()
