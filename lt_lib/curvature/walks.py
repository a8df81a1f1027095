"""Walks in parameter space along given directions, with each class's accuracy and loss at every step."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lt_lib._checks import as_vector, check_finite, check_labels, check_whole
from lt_lib.collapse.losses import class_losses
from lt_lib.collapse.metrics import as_double
from lt_lib.curvature.basis import products
from lt_lib.curvature.class_gradients import Params
from lt_lib.curvature.guard import check_batch_norm, exact, unwrapped
from lt_lib.curvature.operators import norms
from lt_lib.curvature.problem import check_data, select
from lt_lib.curvature.structure import orthonormal_rows
from lt_lib.metrics import per_class_accuracy

Spikes = Tensor | Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Walk:
    """K walks of S steps; column 0 is the start, the same for all."""

    length: Tensor  # (K, S + 1) float64: distance from the start in parameter space
    loss: Tensor  # (K, S + 1) float64: mean cross-entropy over all images
    class_loss: Tensor  # (K, S + 1, C) float64, nan for a class without images
    class_accuracy: Tensor  # (K, S + 1, C) float64 in [0, 1], nan likewise
    kept: Tensor  # (K, S) float64: share of the direction's length left after the spikes were taken out

    @property
    def largest_class_change(self) -> Tensor:
        """Return (K, S + 1): largest absolute change of a class's accuracy from the start."""
        change = (self.class_accuracy - self.class_accuracy[:, :1]).abs()
        return change.nan_to_num(0.0).amax(2)


@dataclass(frozen=True)
class Lengths:
    """Distances at which the loss has changed by a given amount."""

    length: Tensor  # (K,) float64; the limit where it has not
    reached: Tensor  # (K,) bool


def walk(
    model: nn.Module,
    directions: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int = 20,
    step: float | Tensor = 0.1,
    spikes: Spikes | None = None,
    params: Params = None,
    batch: int = 512,
) -> Walk:
    """Walk along each direction and log every class at every step.

    Each direction is scaled to unit length. With `spikes` their span is projected out first and the rest
    scaled to unit length again. Spikes given as a function are computed anew at each point, and the current
    direction is projected on their complement, as the bulk walk of arXiv 2605.07790 does (20 steps of length
    0.1 with the top spikes recomputed). In many dimensions that is a straight line but for rounding: a
    random direction has the squared overlap K/P with K spikes, so that a walk without the projection is the
    control.

    The walk moves a copy; the model itself is not touched. BatchNorm keeps its running statistics.

    Args:
        model: maps (B, ...) to logits (B, C).
        directions: (K, P) over the chosen parameters, in the order of `named_parameters()`.
        images: (n, ...).
        labels: (n,).
        steps: S.
        step: length of one step, one for all or (K,), may be negative. For equal loss changes pass
            `equal_loss_lengths(...).length / steps`.
        spikes: (M, P), or a function of the moved model that returns them; None: no projection.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass.

    Raises:
        ValueError: shapes that do not fit, a direction that is zero or lies in the span of the spikes, or a
            step that is not finite.
    """
    check_whole(steps, "steps")
    mover = _Mover(model, images, labels, params, batch)
    rows = torch.as_tensor(step, dtype=torch.float64).reshape(-1).expand(len(directions))
    check_finite(as_vector(rows, "step"), "step")
    units = project_out(directions, None)[0]
    start = mover.measure(None)
    records, kept = [], torch.ones(len(units), steps, dtype=torch.float64)
    for k, unit in enumerate(units):
        offset, record = torch.zeros_like(unit), [start]
        for s in range(steps):
            if spikes is not None and (s == 0 or callable(spikes)):
                found = spikes(mover.moved(offset)) if callable(spikes) else spikes
                projected, share = project_out(unit[None], found)
                unit, kept[k, s:] = projected[0], share[0]
            offset = offset + float(rows[k]) * unit
            record.append(mover.measure(offset))
        records.append(record)
    columns = [
        torch.stack([torch.stack([point[i] for point in record]) for record in records]) for i in range(4)
    ]
    return Walk(columns[3], columns[0], columns[1], columns[2], kept)


def equal_loss_lengths(
    model: nn.Module,
    directions: Tensor,
    images: Tensor,
    labels: Tensor,
    loss_change: float,
    *,
    first: float = 1e-3,
    limit: float = 1e3,
    tol: float = 1e-2,
    params: Params = None,
    batch: int = 512,
) -> Lengths:
    """Return how far to go along each unit direction until the mean loss has changed by `loss_change`.

    The distance is doubled from `first` until |L - L(0)| reaches the target, then bisected to the relative
    tolerance `tol` of the distance: the first crossing on the doubling grid, not a later one. At equal
    length a spike costs much loss and a bulk direction almost none; this is the other yardstick.

    Args:
        model: maps (B, ...) to logits (B, C); left as it was.
        directions: (K, P) over the chosen parameters.
        images: (n, ...).
        labels: (n,).
        loss_change: target of |L - L(0)| in nats, positive.
        first: first distance tried.
        limit: largest distance; where the target is not met there, `reached` is False.
        tol: relative tolerance of the distance.
        params: patterns of parameter names, as in `HessianOperator`; None: those that require gradients.
        batch: images a pass.

    Raises:
        ValueError: shapes that do not fit, a target or tolerance that is not positive, or first above limit.
    """
    if not (0 < loss_change < math.inf and 0 < tol < 1 and 0 < first <= limit < math.inf):
        raise ValueError(
            "`loss_change`, `tol` and `first` must be positive, `tol` below 1 and `first` not above `limit`; "
            f"found {loss_change}, {tol}, {first} and {limit}."
        )
    mover = _Mover(model, images, labels, params, batch)
    base = float(mover.measure(None)[0])

    def enough(unit: Tensor, length: float) -> bool:
        change = abs(float(mover.measure(length * unit)[0]) - base)
        return not change < loss_change  # a loss that is not a number has changed enough

    lengths, reached = [], []
    for unit in project_out(directions, None)[0]:
        low, high = 0.0, first
        while high < limit and not enough(unit, high):
            low, high = high, min(2 * high, limit)
        met = high < limit or enough(unit, limit)
        while met and high - low > tol * high:
            middle = (low + high) / 2
            low, high = (low, middle) if enough(unit, middle) else (middle, high)
        lengths.append(high)
        reached.append(met)
    return Lengths(torch.tensor(lengths, dtype=torch.float64), torch.tensor(reached))


def project_out(directions: Tensor, spikes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return unit rows (K, P) orthogonal to the spikes, and what share of each length was left (K,) float64.

    Args:
        directions: (K, P).
        spikes: (M, P), any spanning set; None only scales.

    Raises:
        ValueError: a direction that is zero, not finite, or in the span of the spikes to 1e-6.
    """
    if directions.ndim != 2:
        raise ValueError(f"`directions` must be rows (K, P); found shape {tuple(directions.shape)}.")
    check_finite(directions, "directions")
    lengths = norms(directions)
    if bool((lengths == 0).any()):
        raise ValueError("`directions` must not be zero: a zero vector has no direction.")
    units = directions / lengths.to(directions)[:, None]
    if spikes is None:
        return units, torch.ones(len(units), dtype=torch.float64)
    basis = orthonormal_rows(spikes).to(units)
    for _ in range(2):  # the second pass takes out what rounding left
        units = units - torch.stack([products(basis, unit).to(unit) for unit in units]) @ basis
    share = norms(units)
    if bool((share < 1e-6).any()):
        raise ValueError(
            f"Direction {int(share.argmin())} lies in the span of the spikes: nothing is left of it. "
            "Leave it out."
        )
    return units / share.to(units)[:, None], share


class _Mover:
    """A copy of a model that can be set to start + offset and measured."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, params: Params, batch: int) -> None:
        self.model = copy.deepcopy(unwrapped(model)).eval()
        check_batch_norm(self.model)
        self.batch, self.parameters = check_whole(batch, "batch"), list(select(self.model, params).values())
        self.images, labels = check_data(images, labels, self.parameters[0])
        self.start = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        with torch.no_grad():
            self.classes = self.model(self.images[:1]).shape[1]
        self.labels = check_labels(labels, self.classes)

    def moved(self, offset: Tensor | None) -> nn.Module:
        """Return the copy at start + offset."""
        target = self.start if offset is None else self.start + offset.to(self.start)
        pieces = target.split([p.numel() for p in self.parameters])
        with torch.no_grad():
            for p, piece in zip(self.parameters, pieces, strict=True):
                p.copy_(piece.view_as(p))
        return self.model

    def measure(self, offset: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the loss, class losses (C,), class accuracies (C,) and distance there."""
        model, labels = self.moved(offset).eval(), self.labels.cpu()
        with exact(self.start.device), torch.no_grad():
            logits = as_double(torch.cat([model(part) for part in self.images.split(self.batch)])).cpu()
            losses = cross_entropy(logits, labels, reduction="none")
        # a walk may end where logits overflow: such an image counts as wrong, its loss is reported as it is
        right = logits.isfinite().all(1) & (logits.argmax(1) == labels)
        guesses = torch.where(right, labels, (labels + 1) % self.classes)
        distance = 0.0 if offset is None else float(as_double(offset).norm())
        return (
            losses.mean(),
            class_losses(losses, labels, self.classes),
            per_class_accuracy(guesses, labels, self.classes),
            torch.tensor(distance, dtype=torch.float64),
        )
