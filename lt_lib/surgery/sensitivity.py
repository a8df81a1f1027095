r"""The spike-class sensitivity matrix: how each class's accuracy answers to a move along each direction.

S_ij = (acc_j(theta + eps_i q_i) - acc_j(theta - eps_i q_i)) / (2 eps_i)   (MB1 of arXiv 2605.07790)

Accuracy is a step function of each image, so S is a count of images that flipped, over 2 eps n_j: an entry
may be one image. Standard errors and counts of flips therefore come with it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._checks import as_tensor, as_vector, check_choice, check_finite
from lt_lib.curvature.operators import norms
from lt_lib.surgery.forward_mode import linearised
from lt_lib.surgery.movement import Evaluator, Params, check_rows
from lt_lib.surgery.screening import audit_sample, margins, missed, thresholds, undecided, within_noise

METHODS = ("exact", "forward", "screened")


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivities of C class accuracies to K directions, with how far they can be trusted."""

    matrix: Tensor  # (K, C) float64: S, change of accuracy (a share) per unit length
    errors: (
        Tensor  # (K, C) float64 standard errors, paired by image; 0 where nothing flipped, inf for one image
    )
    flips: Tensor  # (K, C) int64: images whose correctness differs between the two ends
    eps: Tensor  # (K,) float64: lengths of the moves
    accuracy: Tensor  # (C,) float64: shares at the start
    method: str
    audited: float  # share of audited outcomes (image, direction) that the fast path had wrong; 0 for "exact"
    dropped: Tensor  # (K,) bool: directions on which the fast path was given up for evaluation
    passes: float  # evaluations of all images, in all; a forward-mode product counts as two

    @property
    def fell_back(self) -> bool:
        """Whether a direction was evaluated exactly since the fast path disagreed on its audit."""
        return bool(self.dropped.any())


def class_sensitivity(
    model: nn.Module,
    vectors: Tensor,
    images: Tensor,
    labels: Tensor,
    eps: Any,
    values: Any = None,
    **options: Any,
) -> Tensor:
    """Return the sensitivity matrix (K, C) float64 alone; arguments and errors as `measure_sensitivity`."""
    return measure_sensitivity(model, vectors, images, labels, eps, values, **options).matrix


def measure_sensitivity(
    model: nn.Module,
    vectors: Tensor,
    images: Tensor,
    labels: Tensor,
    eps: Any,
    values: Any = None,
    classes: int | None = None,
    params: Params = None,
    method: str = "screened",
    batch: int | None = None,
    audit: float = 0.1,
    seed: int = 0,
) -> Sensitivity:
    """Measure S by central differences of each class's accuracy (MB1 of arXiv 2605.07790).

    "exact" evaluates every image at 2 K displaced weights. "screened" gives the same numbers, but for a few
    flips at most (`lt_lib.surgery.screening`), in fewer evaluations: of a random share `audit` of the images,
    and of the others only those whose margin is small enough for what was seen there; once +eps is known,
    -eps is extrapolated from it where that is safe. "forward" takes every outcome from one forward-mode
    product of the logits a direction, with no evaluation beyond the audit; as costly as "exact" for one eps,
    it validates `linear_logits`, which serves every eps. Both compare with the audit, and give up directions
    on which their error may exceed the standard error of the flips: those are evaluated in full.

    Eval mode; weights, buffers, modes and random states of the model are left as they were. The released code
    evaluates 2 K full sweeps and gives no errors.

    Args:
        model: maps images (B, ...) to logits (B, C), float32 or float64.
        vectors: (K, P) unit rows in the order of `named_parameters()`, as `lanczos` returns them.
        images: (n, ...) as the network takes them; held out from training.
        labels: (n,) in 0..C-1, each class at least once.
        eps: length of the moves, one or (K,); with `values`, the energy of the moves in nats.
        values: (K,) eigenvalues: then eps_i = sqrt(2 eps / |value_i|), at which the quadratic model of the
            loss changes by `eps`.
        classes: C; None: as many as there are logits.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        method: "screened", "exact" or "forward".
        batch: images a pass; None: as many as `lt_lib.surgery.movement.usual_batch` says.
        audit: share of images evaluated in full by the fast paths; 200 images at least.
        seed: of the audit's draw.

    Raises:
        ValueError: rows that are not unit vectors or do not fit, an eps that is not positive, a zero
            eigenvalue, logits that are not finite at the start, a class without an image, or a model in half
            precision or that returns something else than one tensor.
    """
    check_choice(method, METHODS, "method")
    evaluator = Evaluator(model, images, labels, classes, params, batch)
    _check_units(vectors, evaluator.problem.size)
    lengths = _lengths(eps, values, len(vectors))
    logits = evaluator.logits()
    check_finite(logits, "the model's logits")
    start = margins(logits, evaluator.labels)
    sample = audit_sample(len(evaluator), audit, seed)
    change, wrong, dropped = _outcomes(evaluator, vectors, lengths, start, sample, method)
    audited = float(wrong.sum()) / max(1, len(sample) * len(vectors))
    spread = _spread(evaluator, change)
    width = 2 * lengths[:, None]
    return Sensitivity(
        matrix=evaluator.shares(change) / width,
        errors=spread / width,
        flips=(evaluator.shares(change.abs()) * evaluator.counts).round().to(torch.int64),
        eps=lengths,
        accuracy=evaluator.shares(start > 0),
        method=method,
        audited=audited,
        dropped=dropped,
        passes=evaluator.spent / len(evaluator),
    )


def _outcomes(
    evaluator: Evaluator, vectors: Tensor, lengths: Tensor, start: Tensor, sample: Tensor, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return correct at +eps minus at -eps (K, n) int8, wrong audited outcomes (K,), and what was dropped."""
    k, n = len(vectors), len(start)
    change = torch.zeros(k, n, dtype=torch.int8, device=start.device)
    wrong, dropped = torch.zeros(k, dtype=torch.int64), torch.zeros(k, dtype=torch.bool)
    linear = linearised(evaluator, vectors) if method == "forward" else None
    for i, (vector, length) in enumerate(zip(vectors, lengths.tolist(), strict=True)):
        move = _Move(evaluator, vector, length)
        if method != "exact":
            predicted = start.expand(2, n)
            if linear is not None:
                steps = [linear.logits + sign * length * linear.changes[i] for sign in (1, -1)]
                predicted = torch.stack([margins(z, evaluator.labels) for z in steps])
            move.evaluate(sample)
            wrong[i] = (
                _forward(move, predicted, sample) if linear is not None else _screen(move, start, sample)
            )
            flips = (move.change() != 0).sum().cpu()
            dropped[i] = not bool(within_noise(wrong[i], len(sample), n, flips))
        if method == "exact" or dropped[i]:
            move.evaluate(torch.arange(n))
        change[i] = move.change()
    return change, wrong, dropped


class _Move:
    """Margins of all images at both ends of one move, as far as they are known."""

    def __init__(self, evaluator: Evaluator, vector: Tensor, length: float) -> None:
        self.evaluator, self.vector, self.length = evaluator, vector, length
        n, device = len(evaluator), evaluator.problem.device
        self.margins = torch.full((2, n), math.nan, dtype=evaluator.problem.dtype, device=device)
        self.known = torch.zeros(2, n, dtype=torch.bool, device=device)

    def evaluate(self, index: Tensor, ends: tuple[int, ...] = (0, 1)) -> None:
        """Evaluate the images at `index` that are not known at these ends (0 is +eps)."""
        index = index.to(self.known.device)
        for end in ends:
            todo = index[~self.known[end, index]]
            if len(todo):
                logits = self.evaluator.logits(self.vector, todo, (1 - 2 * end) * self.length)
                self.margins[end, todo] = margins(logits, self.evaluator.labels[todo])
                self.known[end, todo] = True

    def predict(self, predicted: Tensor, end: int) -> None:
        """Fill in what is not known at this end."""
        self.margins[end] = torch.where(self.known[end], self.margins[end], predicted)

    def change(self) -> Tensor:
        """Return correct at +eps minus correct at -eps, (n,) int8."""
        right = (self.margins > 0).to(torch.int8)
        return right[0] - right[1]


def _forward(move: _Move, predicted: Tensor, sample: Tensor) -> Tensor:
    """Take what is not known from the prediction; return on how many audited images its outcome is wrong."""
    right = (predicted[:, sample] > 0).to(torch.int8)
    wrong = right[0] - right[1] != move.change()[sample]
    for end in (0, 1):
        move.predict(predicted[end], end)
    return wrong.sum().cpu()


def _screen(move: _Move, start: Tensor, sample: Tensor) -> Tensor:
    """Evaluate what has to be; return how many audited images screening alone would have had wrong."""
    found = move.margins[:, sample]
    limits, others = zip(*(thresholds(start[sample], ends) for ends in found), strict=True)
    loose = torch.maximum(*others)
    wrong = missed(start[sample], found[0], loose) | missed(start[sample], found[1], loose)
    is_open = undecided(start, max(limits))
    opened = is_open.nonzero().flatten()
    move.evaluate(opened, (0,))
    mirrored = 2 * start - move.margins[0]
    inside = sample.to(start.device)[is_open[sample]]
    limit, rest = thresholds(mirrored[inside], move.margins[1, inside])
    wrong = wrong.sum() + missed(mirrored[inside], move.margins[1, inside], rest).sum()
    move.evaluate(opened[undecided(mirrored[opened], limit)], (1,))
    move.predict(start, 0)
    move.predict(torch.where(is_open, mirrored, start), 1)
    return wrong.cpu()


def _spread(evaluator: Evaluator, change: Tensor) -> Tensor:
    """Return the standard errors (K, C) of the class means of changes (K, n)."""
    mean, square = evaluator.shares(change), evaluator.shares(change.abs())  # the square of -1, 0 or 1
    variance = (square - mean.square()).clamp_min(0) / (evaluator.counts - 1)
    return torch.where(evaluator.counts > 1, variance, math.inf).sqrt()


def _lengths(eps: Any, values: Any, k: int) -> Tensor:
    given = as_tensor(eps, "eps").detach().double().cpu()
    given = given.expand(k) if given.ndim == 0 else as_vector(given, "eps", k)
    check_finite(given, "eps")
    if bool((given <= 0).any()):
        raise ValueError(f"`eps` must be positive; found {float(given.min()):g}. It is how far weights move.")
    if values is None:
        return given
    sizes = as_tensor(values, "values").detach().double().cpu().abs()
    if sizes.shape != (k,) or not bool(((sizes > 0) & sizes.isfinite()).all()):
        raise ValueError(
            f"`values` must be one eigenvalue for each of the {k} directions, finite and not 0: a direction "
            "without curvature has no length at a given energy. Leave it out, or give `eps` as a length."
        )
    return (2 * given / sizes).sqrt()


def _check_units(vectors: Tensor, size: int) -> None:
    check_rows(vectors, size, "vectors")
    if len(vectors) == 0:
        raise ValueError("`vectors` must hold at least one direction; found none.")
    off = (norms(vectors) - 1).abs()
    if bool((off > 0.01).any()):
        raise ValueError(
            f"`vectors` must be unit rows, as `eps` is a length; row {int(off.argmax())} has norm "
            f"{float(norms(vectors)[off.argmax()]):g}. Divide each row by its norm."
        )
