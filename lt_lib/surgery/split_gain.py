r"""A gain split into what a logit bias, class gains and nothing of the kind explain.

At full collapse the spikes of the head are the tangent space of :math:`z_k\mapsto s_kz_k+b_k` (Theorem T3,
consequence 3), and with true posteriors no rule rebalances better than a bias (Theorem T5). So whatever
surgery does to a trained network is held against the part of it that is such a change of logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from lt_lib.metrics import Interval
from lt_lib.metrics.sigma import PairedImages, paired_images
from lt_lib.posthoc import fit_logit_bias
from lt_lib.posthoc.adjustment import check_logits
from lt_lib.posthoc.evaluation import NUMBERS, Measured, evaluation

PARTS = ("bias", "gains", "remainder")


@dataclass(frozen=True, eq=False)
class ChangeSplit:
    """A change of logits as bias + class gains + remainder, orthogonal over images and logits."""

    bias: Tensor  # (C,) float64, sum 0: mean change of each logit
    gains: Tensor  # (C,) float64: s - 1 of the fit with gains and bias
    parts: dict[str, Tensor]  # of PARTS, (n, C) float64 each; rows sum to 0; together the centred change
    shares: dict[str, float]  # of PARTS: squared norm over that of the centred change; nan without change


def split_change(before: Any, after: Any, centre_logits: bool = False) -> ChangeSplit:
    r"""Split the change of logits by least squares over images, no labels used.

    The change D = after - before is centred over the logits of each image, since the softmax sees no more.
    "bias" is its projection on constants b; "gains" what the projection on :math:`s_kz_k+b_k`, centred, adds
    to that; "remainder" the rest. The three are orthogonal, so their shares sum to 1; the first two together
    are the R^2 of `lt_lib.curvature.scaling_share`.

    Args:
        before: logits (n, C) of the model as it was.
        after: of the changed model, same images.
        centre_logits: whether gains act on logits centred per image; False is z_k -> s_k z_k as written.

    Raises:
        ValueError: shapes that do not fit, or logits that are not finite or are probabilities.
    """
    z, change = _pair(before, after)
    if centre_logits:
        z = z - z.mean(1, keepdim=True)
    n, classes = z.shape
    bias = change.mean(0)
    centring = torch.eye(classes, dtype=z.dtype) - 1 / classes
    about = z - z.mean(0)  # gains on logits centred over images leave the bias as it is
    # normal equations: sum over images and logits of the centred gain terms e_k (z_k - mean) P
    normal = centring * (about.T @ about)
    moment = (about * (change - bias)).sum(0)
    gains = torch.linalg.pinv(normal, rtol=1e-11, hermitian=True) @ moment
    parts = {"bias": bias.expand(n, -1).clone(), "gains": (about * gains) @ centring}
    parts["remainder"] = change - parts["bias"] - parts["gains"]
    total = float(change.square().sum())
    floor = 1e-26 * float(z.square().sum() + (z + change).square().sum())
    shares = {k: float(p.square().sum()) / total if total > floor else float("nan") for k, p in parts.items()}
    return ChangeSplit(bias, gains, parts, shares)


@dataclass(frozen=True, eq=False)
class GainSplit:
    """Gain of a number (`lt_lib.posthoc.evaluation.NUMBERS`) by part; both splits sum to the total."""

    number: str
    before: float
    after: float
    nested: dict[str, float]  # of PARTS: added in their order, so bias takes what it can first
    shapley: dict[str, float]  # of PARTS: mean over the six orders
    change: ChangeSplit
    bias_only: Measured  # the classifier with the bias part alone
    bias_and_gains: Measured  # with both


def split_gain(
    before: Any, after: Any, labels: Any, classes: int, number: str = "balanced", centre_logits: bool = False
) -> GainSplit:
    """Return how much of a gain remains when only part of the change of logits is made.

    The change is split by `split_change`; the number (an accuracy, sigma, ...) is measured with each subset
    of the parts. In the nested split the bias is added first, then the gains, then the remainder: the last
    entry is what surgery did that no vector scaling of the same size does. Parts interact in an accuracy, so
    the order matters; the Shapley split averages over orders.

    Args:
        before: logits (n, C) of the model as it was, on the images to report on.
        after: of the changed model.
        labels: (n,).
        classes: C.
        number: of `NUMBERS`.
        centre_logits: as in `split_change`.

    Raises:
        ValueError: as `split_change` and `evaluation`, or an unknown number.
    """
    if number not in NUMBERS:
        raise ValueError(f"`number` must be one of {', '.join(NUMBERS)}; found `{number}`.")
    split = split_change(before, after, centre_logits)
    start = torch.as_tensor(before).detach().cpu().double()
    found: dict[frozenset[str], Measured] = {}

    def measured(chosen: tuple[str, ...]) -> Measured:
        key = frozenset(chosen)
        if key not in found:
            found[key] = evaluation(sum((split.parts[p] for p in chosen), start), labels, classes)
        return found[key]

    def steps(order: tuple[str, ...]) -> dict[str, float]:
        values = [getattr(measured(order[:i]), number) for i in range(len(order) + 1)]
        return {part: values[i + 1] - values[i] for i, part in enumerate(order)}

    orders = [steps(order) for order in permutations(PARTS)]
    shapley = {part: sum(order[part] for order in orders) / len(orders) for part in PARTS}
    return GainSplit(
        number,
        float(getattr(measured(()), number)),
        float(getattr(measured(PARTS), number)),
        steps(PARTS),
        shapley,
        split,
        measured(("bias",)),
        measured(("bias", "gains")),
    )


@dataclass(frozen=True)
class OverBias:
    """The four classifiers of one comparison on the same images, and what surgery adds to a fitted bias."""

    plain: Measured
    biased: Measured  # a bias fitted to the calibration logits of the model as it was
    operated: Measured
    both: Measured  # operated, then a bias fitted to its own calibration logits
    added: dict[str, PairedImages]  # of balanced, plain, sigma and worst: both against biased
    repaired: dict[str, PairedImages]  # of balanced accuracy: biased, operated and both against plain

    def changes(self) -> dict[str, PairedImages]:
        """Return the changes of balanced accuracy that a table of repairs shows, by what they compare."""
        named = {"biased": "bias fit", "operated": "surgery", "both": "surgery, then bias fit"}
        against = {text: self.repaired[kind] for kind, text in named.items()}
        return {**against, "surgery on top of the bias fit": self.added["balanced"]}

    def text(self, number: str = "balanced", digits: int = 1) -> str:
        """Write "on top of a bias fit, surgery changes sigma by -0.4 [-1.2, 0.3] points" (over images)."""
        interval: Interval = self.added[number].difference
        name = number if number == "sigma" else f"{number} accuracy"
        return f"on top of a bias fit, surgery changes {name} by {interval.text(digits, 100)} points"


def over_bias(
    calibration: tuple[Any, Any],
    test: tuple[Any, Any],
    calibration_labels: Any,
    test_labels: Any,
    classes: int,
    fit: Callable[[Any, Any], Callable[[Any], Tensor]] = fit_logit_bias,
    seed: int = 0,
) -> OverBias:
    """Compare surgery with a bias fit on the same calibration images, alone and on top of each other.

    Theorem T5: what acts after the features beats a bias only by the miscalibration of the logits, so the
    question for surgery is what it adds once each network has its own best bias.

    Args:
        calibration: logits (n, C) before and after surgery, on the images that both were steered by.
        test: the same on images to report on.
        calibration_labels: (n,), each class there.
        test_labels: of the test logits.
        classes: C.
        fit: what is fitted, for instance `fit_vector_scaling`.
        seed: of the bootstrap over test images.

    Raises:
        ValueError: shapes or labels that do not fit, or a fit that does not converge.
    """
    kinds = [check_logits(test[0]), check_logits(test[1])]
    fitted = [fit(calibration[i], calibration_labels)(kinds[i]) for i in (0, 1)]
    added = {
        number: paired_images(fitted[0], fitted[1], test_labels, classes, number, seed=seed)
        for number in ("balanced", "plain", "sigma", "worst")
    }
    repaired = {
        kind: paired_images(kinds[0], logits, test_labels, classes, "balanced", seed=seed)
        for kind, logits in {"biased": fitted[0], "operated": kinds[1], "both": fitted[1]}.items()
    }
    plain, operated = (evaluation(logits, test_labels, classes) for logits in kinds)
    biased, both = (evaluation(logits, test_labels, classes) for logits in fitted)
    return OverBias(plain, biased, operated, both, added, repaired)


def _pair(before: Any, after: Any) -> tuple[Tensor, Tensor]:
    """Logits before and the centred change, (n, C) float64 each."""
    z, other = (check_logits(v, n).detach().cpu().double() for v, n in ((before, "before"), (after, "after")))
    if z.shape != other.shape:
        raise ValueError(
            f"`before` and `after` must be logits of the same images; found shapes {tuple(z.shape)} and "
            f"{tuple(other.shape)}."
        )
    change = other - z
    return z, change - change.mean(1, keepdim=True)
