"""The Mittag-Leffler function, and the learning-rate schedule built on it."""

import math
from functools import lru_cache
from numbers import Real
from typing import Any

from lt_lib.data import imbalance_statistics

LOWEST_ORDER = 0.05  # below, the series needs more terms than it is worth


def mittag_leffler(order: float, value: float) -> float:
    r"""Return :math:`E_a(-t)=\sum_{k\ge0}\frac{(-t)^k}{\Gamma(ak+1)}` for t = `value` in [0, 1].

    It falls from 1; :math:`E_1(-t)=e^{-t}` and :math:`E_{1/2}(-t)=e^{t^2}\mathrm{erfc}(t)`. The series is
    summed until its terms vanish in float64; on [0, 1] none of them exceeds 1.13, so that no digits cancel.

    Args:
        order: a, in [0.05, 1].
        value: t, in [0, 1].

    Raises:
        ValueError: either is no number or outside its range.
    """
    numbers = all(isinstance(given, Real) and not isinstance(given, bool) for given in (order, value))
    if not numbers or not LOWEST_ORDER <= order <= 1 or not 0 <= value <= 1:
        raise ValueError(
            f"E_a(-t) is computed for orders a in [{LOWEST_ORDER}, 1] and t in [0, 1]; found a = {order!r} "
            f"and t = {value!r}. Call it once a number."
        )
    return math.fsum(c * (-float(value)) ** k for k, c in enumerate(_coefficients(float(order))))


@lru_cache(maxsize=64)
def _coefficients(order: float) -> tuple[float, ...]:
    terms: list[float] = []
    while not terms or terms[-1] > 1e-18:
        terms.append(math.exp(-math.lgamma(order * len(terms) + 1)))
    return tuple(terms)


def inverse_gamma_below_one(order: float) -> float:
    r"""Return :math:`1/\Gamma(1-a)` for a = `order` in (0, 1]: 0 at a = 1, where Gamma has a pole."""
    return 0.0 if order == 1 else 1 / math.gamma(1 - order)


def order_of(class_counts: Any) -> float:
    r"""Return the order that the code released with arXiv 2605.10047 takes: :math:`a=0.25+0.75\,H/\log C`.

    H is the entropy of the class shares, in nats. Balanced classes give 1, the exponential profile of 100
    classes and imbalance 100 gives 0.903.

    Args:
        class_counts: (C,) training images of each class, at least 1.

    Raises:
        ValueError: a class is empty.
    """
    return min(1.0, 0.25 + 0.75 * float(imbalance_statistics(class_counts).entropy))


def multiplier(order: float, step: int, warm: int, switch: int, total: int) -> float:
    r"""Return the factor of the base rate at `step`, after the warm-up of `warm` steps.

    :math:`E_a\bigl(-\frac{s-W}{P-W}\bigr)` before step P = `switch`, then
    :math:`\frac{1}{\Gamma(1-a)}\frac{T-s}{T-P}`.
    """
    if step < switch:
        return mittag_leffler(order, (step - warm) / (switch - warm))
    return inverse_gamma_below_one(order) * (total - step) / (total - switch)
