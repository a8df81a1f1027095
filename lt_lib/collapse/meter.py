"""Neural-collapse metrics in one pass over the data, float64 throughout, memory O(C d + d^2)."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_tensor, check_choice, check_counts, check_finite, check_labels
from lt_lib.collapse.etf import check_sizes, nc2_floor
from lt_lib.collapse.metrics import (
    NO_CLASSIFIER,
    Collapse,
    as_double,
    centre_rows,
    classifier_metrics,
    etf_distance,
    group_means,
    mean_spectrum,
    pair_angles,
    relative_spread,
    variability,
)

_ROWS = 2048  # samples handled at a time by `neural_collapse`: bounds its temporaries
_SCORES = 2**20  # scores handled at a time by `disagreement`
_PER_CLASS_LIMIT = 2**24  # numbers in C matrices d x d (128 MiB) when class counts are unknown


class CollapseMeter:
    """Accumulates class means and within-class covariance batch by batch; `compute` gives the metrics.

    Means and scatter are merged by the update of Chan, Golub and LeVeque (1979): each batch is centred on its
    own class means, and only non-negative terms are added. So nothing cancels (an NC1 of 1e-12 keeps its
    digits and never turns negative), and the split into batches changes nothing but rounding.

    A class's covariance is weighted by 1 / n_c, which must be known before the first sample if one d x d
    matrix is to suffice: pass `class_counts`. Without them (and with `within="class"`) the meter keeps one
    d x d matrix a class, and refuses when those would exceed 128 MiB.

    Args:
        classes: C.
        dim: d, number of features.
        class_counts: (C,) how many samples of each class will come; 0 for a class that will not.
        within: "class": Sigma_W is the mean of the class covariances (Theorem T1); "sample": the
            mean over samples.
        device: where the accumulators live.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        class_counts: Any = None,
        within: str = "class",
        device: torch.device | str = "cpu",
    ) -> None:
        check_choice(within, ("class", "sample"), "within")
        check_sizes(max(classes, 2), dim)  # one class is refused where its metrics are asked for
        self.classes, self.dim, self.within = classes, dim, within
        self.device = torch.device(device)
        self._announced = None if class_counts is None else self._check_announced(class_counts)
        self._shared = within == "sample" or self._announced is not None
        if not self._shared and classes * dim * dim > _PER_CLASS_LIMIT:
            raise ValueError(
                f"`class_counts` is needed for {classes} classes of {dim} features: without it one {dim} x "
                f"{dim} matrix a class is kept, {classes * dim * dim * 8 / 2**30:.1f} GiB in all. Pass the "
                'counts, or choose `within="sample"`.'
            )
        self.counts = torch.zeros(classes, dtype=torch.int64, device=self.device)
        self._means = torch.zeros(classes, dim, dtype=torch.float64, device=self.device)
        owners = 1 if self._shared else classes
        self._scatter = torch.zeros(owners, dim, dim, dtype=torch.float64, device=self.device)

    @torch.no_grad()
    def update(self, features: Any, labels: Any) -> None:
        """Add a batch: features (B, d) of any float type, labels (B,) in 0..C-1.

        Raises:
            ValueError: shapes that do not fit, labels outside the range, a feature that is not finite.
        """
        h, labels = self._checked(features, labels)
        if len(h) == 0:
            return
        present, own, count = labels.unique(return_inverse=True, return_counts=True)
        batch_means = group_means(h, own, count)
        # in float64: torch divides whole numbers, and takes their roots, in float32
        seen, new = self.counts[present].to(h.dtype), count.to(h.dtype)
        total = seen + new
        step = batch_means - self._means[present]
        between = step * torch.sqrt(seen * new / total)[:, None]
        # a sample alone in its class, and a class met for the first time, add a row of zeros: leave it out
        crowd, again = count[own] > 1, seen > 0
        rows = torch.cat([(h - batch_means[own])[crowd], between[again]])
        self._add(rows, torch.cat([labels[crowd], present[again]]))
        self._means[present] += step * (new / total)[:, None]
        self.counts[present] += count

    @torch.no_grad()
    def compute(self, weight: Any = None, bias: Any = None) -> Collapse:
        """Return the metrics of all samples seen so far; nc4 is None (see `disagreement`).

        Args:
            weight: (C, d) of the classifier, as it acts on these features.
            bias: (C,), or None for none.

        Raises:
            ValueError: fewer than two classes have samples; counts differ from `class_counts`; a
                classifier of another shape.
        """
        self._check_counts_seen()
        present = self.counts > 0
        means = self._means[present]
        count = len(means)
        global_mean = means.mean(0)
        centred = centre_rows(means)
        values, directions = mean_spectrum(centred, resolution=float(means.norm()))
        within = self.within_covariance()
        classifier = NO_CLASSIFIER
        if weight is not None:
            rows, offsets = (part[present] for part in self._classifier(weight, bias))
            classifier = classifier_metrics(rows, offsets, centred, global_mean, within)
        std, deviation = pair_angles(centred)
        return Collapse(
            nc1=variability(within, values, directions),
            nc2=etf_distance(values, count),
            nc2_floor=nc2_floor(count, self.dim),
            **classifier,
            equiangularity=std,
            max_angle=deviation,
            equinorm_means=relative_spread(centred.norm(dim=1)),
            rank=len(values),
            classes=count,
            absent=tuple((~present).nonzero().flatten().tolist()),
        )

    @torch.no_grad()
    def disagreement(self, features: Any, labels: Any, weight: Any, bias: Any = None) -> float:
        """Return NC4: the share of these samples where classifier and nearest class mean choose differently.

        In [0, 1]. A second pass, since it needs the final means. Absent classes are out of both choices, and
        samples labelled with one are left out. For several batches, average weighted by their sizes. nan for
        no sample.

        Raises:
            ValueError: nothing was seen by `update`, or shapes that do not fit.
        """
        present = self.counts > 0
        if not bool(present.any()):
            raise ValueError("`disagreement` needs class means, but there are none. Call `update` first.")
        features, labels = as_tensor(features, "features"), as_tensor(labels, "labels")
        weight, bias = self._classifier(weight, bias)
        weight, bias = weight[present], bias[present]
        centre = self._means[present].mean(0)
        means = self._means[present] - centre  # differences of distances lose no digits to a common offset
        half = means.square().sum(1) / 2
        rows = max(1, min(_ROWS, _SCORES // len(means)))
        differ, seen = 0, 0
        for part, own in zip(features.split(rows), labels.split(rows), strict=True):
            h, own = self._checked(part, own)
            h = h[present[own]]
            nearest = ((h - centre) @ means.T - half).argmax(1)
            differ += int((nearest != (h @ weight.T + bias).argmax(1)).sum())
            seen += len(h)
        return differ / seen if seen else math.nan

    def means(self) -> Tensor:
        """Return the class means, (C, d) float64; nan for a class without samples."""
        return torch.where(self.counts[:, None] > 0, self._means, math.nan)

    def within_covariance(self) -> Tensor:
        """Return Sigma_W, (d, d) float64, symmetric and positive semi-definite.

        The mean over classes with samples of (1/n_c) sum (h - mu_c)(h - mu_c)^T, so a class with one sample
        adds 0; or, with `within="sample"`, that mean weighted by n_c.
        """
        seen = self.counts > 0
        if self._shared:
            result = self._scatter[0] / (self.counts if self.within == "sample" else seen).sum()
        else:
            result = (self._scatter[seen] / self.counts[seen, None, None]).mean(0)
        return (result + result.T) / 2  # products of matrices are symmetric only to rounding

    def _add(self, rows: Tensor, labels: Tensor) -> None:
        if not self._shared:
            for c in labels.unique().tolist():
                own = rows[labels == c]
                self._scatter[c].addmm_(own.T, own)
            return
        if self.within == "class" and self._announced is not None:
            rows = rows / torch.sqrt(self._announced[labels].clamp_min(1).to(rows.dtype))[:, None]
        self._scatter[0].addmm_(rows.T, rows)

    def _classifier(self, weight: Any, bias: Any) -> tuple[Tensor, Tensor]:
        weight = as_tensor(weight, "weight").detach()
        if tuple(weight.shape) != (self.classes, self.dim):
            raise ValueError(
                f"`weight` must be ({self.classes}, {self.dim}), one row a class; found "
                f"{tuple(weight.shape)}."
            )
        weight = as_double(weight).to(self.device)
        if bias is None:
            return weight, weight.new_zeros(self.classes)
        bias = as_tensor(bias, "bias").detach()
        if tuple(bias.shape) != (self.classes,):
            raise ValueError(
                f"`bias` must hold one number for each of the {self.classes} classes; found shape "
                f"{tuple(bias.shape)}."
            )
        return weight, as_double(bias).to(self.device)

    def _checked(self, features: Any, labels: Any) -> tuple[Tensor, Tensor]:
        features, labels = as_tensor(features, "features"), as_tensor(labels, "labels")
        if features.shape != (*labels.shape, self.dim):
            raise ValueError(
                f"`features` must be ({labels.numel()}, {self.dim}), one row a label; found "
                f"{tuple(features.shape)}."
            )
        labels = check_labels(labels, self.classes)
        check_finite(features, "features")
        return as_double(features.detach()).to(self.device), labels.to(self.device)

    def _check_announced(self, class_counts: Any) -> Tensor:
        counts = check_counts(class_counts, minimum=0)
        if len(counts) != self.classes:
            raise ValueError(
                f"`class_counts` must hold one count for each of the {self.classes} classes; found "
                f"{len(counts)}."
            )
        return counts.to(self.device)

    def _check_counts_seen(self) -> None:
        if int((self.counts > 0).sum()) < 2:
            raise ValueError(
                f"Neural collapse needs samples of at least 2 classes; found {int((self.counts > 0).sum())}. "
                "Call `update` with more data first."
            )
        if self._announced is None:
            return
        wrong = (self.counts != self._announced).nonzero().flatten().tolist()
        if wrong:
            c = wrong[0]
            raise ValueError(
                f"Class {c} has {int(self.counts[c])} samples so far, but `class_counts` announced "
                f"{int(self._announced[c])}. Finish the pass over the data, or pass the counts of this data."
            )


@torch.no_grad()
def neural_collapse(
    features: Any,
    labels: Any,
    weight: Any = None,
    bias: Any = None,
    classes: int | None = None,
    within: str = "class",
) -> Collapse:
    """Return the neural-collapse metrics of features in memory, nc4 included when a classifier is given.

    Args:
        features: (n, d), any float type; computed in float64. Tensors, arrays or lists, as the rest.
        labels: (n,) in 0..C-1; a class that does not occur is excluded and named in `absent`.
        weight: (C, d) of the classifier, as it acts on these features.
        bias: (C,), or None for none.
        classes: C; by default the rows of `weight`, or else the largest label plus 1.
        within: "class" or "sample": how Sigma_W averages, see `CollapseMeter`.

    Raises:
        ValueError: labels outside 0..C-1, features that are not finite or not (n, d), fewer than two
            classes with samples, a classifier of another shape.
    """
    features, labels = as_tensor(features, "features"), as_tensor(labels, "labels")
    if features.ndim != 2 or labels.ndim != 1 or len(labels) == 0:
        raise ValueError(
            f"`features` must be (n, d) and `labels` (n,) with n > 0; found {tuple(features.shape)} "
            f"and {tuple(labels.shape)}."
        )
    if classes is None:
        classes = len(weight) if weight is not None else int(labels.max()) + 1
    labels = check_labels(labels, classes)
    counts = torch.bincount(labels, minlength=classes)
    device = "cpu" if features.device.type == "mps" else features.device
    meter = CollapseMeter(classes, features.shape[1], counts, within, device)
    for h, y in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
        meter.update(h, y)
    result = meter.compute(weight, bias)
    if weight is None:
        return result
    return replace(result, nc4=meter.disagreement(features, labels, weight, bias))
