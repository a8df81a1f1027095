"""Cross-entropy with class weights: fixed ones from the counts, and the class mean of a batch."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import as_vector, check_counts, check_finite
from lt_lib.losses._base import ClassLoss, class_totals, gather_class
from lt_lib.reweighting._entry import check_number, cross_entropy
from lt_lib.reweighting.macro import relative_power


def inverse_frequency_weights(class_counts: Any, power: float = 1.0) -> Tensor:  # (C,) float64
    r"""Weights :math:`w_c \propto n_c^{-\text{power}}` with mean one over classes.

    Power 1 is inverse frequency, 1/2 its square root, 0 plain cross-entropy. See `class_balanced_weights` for
    the rule that some released codes use under this name.

    Raises:
        ValueError: a class is empty, or `power` is negative or not finite.
    """
    power = check_number(power, "power", low=0)
    weights = relative_power(check_counts(class_counts).to(torch.float64), power)
    return weights / weights.mean()


def class_balanced_weights(class_counts: Any, beta: float = 0.9999) -> Tensor:  # (C,) float64
    r"""Weights by the effective number of samples, sum C (Cui et al. 2019, arXiv 1901.05555).

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}

    beta 0 gives ones; beta -> 1 gives inverse frequency, which is another loss here.

    Raises:
        ValueError: a class is empty, or `beta` is outside [0, 1).
    """
    if not 0 <= check_number(beta, "beta") < 1:
        raise ValueError(f"`beta` must be in [0, 1); found {beta}. For its limit 1 use `inverse_frequency`.")
    counts = check_counts(class_counts).to(torch.float64)
    log_beta = torch.tensor(beta, dtype=torch.float64).log()
    weights = 1 / -torch.expm1(counts * log_beta)
    return weights * len(counts) / weights.sum()


def check_weights(weights: Any, classes: int | None = None, name: str = "weights") -> Tensor:
    """Return class weights (C,) as float64.

    Raises:
        ValueError: the length is wrong, or a weight is negative or not finite.
    """
    vector = as_vector(weights, name, classes).detach().clone()
    check_finite(vector, name)
    if bool((vector < 0).any()):
        raise ValueError(
            f"`{name}` must not be negative; found {float(vector.min()):g}. Pass weights of at least 0."
        )
    return vector


class WeightedCrossEntropy(ClassLoss):
    r"""Cross-entropy with fixed class weights, :math:`\frac1B\sum_i w_{y_i}\,\mathrm{CE}_i`.

    Splitting a batch changes nothing: the gradient of the whole is the size-weighted mean of the parts'
    gradients.
    """

    class_weights: Tensor

    def __init__(self, weights: Any, dtype: torch.dtype | None = None) -> None:
        vector = check_weights(weights)
        super().__init__(len(vector))
        self.register_buffer("class_weights", vector.to(dtype or torch.get_default_dtype()))

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        loss = cross_entropy(logits, labels)
        return loss * gather_class(self.class_weights, labels, loss)


class ClassMeanCrossEntropy(ClassLoss):
    r"""Class-mean cross-entropy of a batch, :math:`\frac1{|P|}\sum_{c\in P}\ell_c` over the classes present.

    By Theorem T2 this is, up to the step size, what inverse reweighting with its gradient through the weights
    trains at alpha = 0. Its weights depend on the batch, so splitting a batch changes the gradient: over an
    epoch class c counts once for each batch that holds it.
    """

    def _terms(self, logits: Tensor, labels: Tensor, features: Any = None) -> Tensor:
        loss = cross_entropy(logits, labels)
        counts = class_totals(labels, self.classes, loss.dtype)
        weights = len(labels) / (counts.clamp(min=1) * (counts > 0).sum())
        return loss * weights.index_select(0, labels)
