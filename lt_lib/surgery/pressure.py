"""How strongly each class presses for a higher accuracy: the weights of the linear programme of surgery."""

import math
from numbers import Real
from typing import Any

from torch import Tensor

from lt_lib._checks import as_vector, check_choice

PRESSURES = ("error", "gap")
_RATIO = 5.0  # of the largest to the smallest error, where the published rule for the exponent turns


def class_pressure(accuracy: Any, power: float = 1.0, kind: str = "error") -> Tensor:
    """Return the weights `w_j` of the classes, which sum to one.

    `w_j = v_j^p / sum_k v_k^p` with `v_j = 1 - a_j` ("error", the paper's text, arXiv 2605.07790) or
    `v_j = max_k a_k - a_j` ("gap", of most released runs, with p = 1, the headline table among them). p = 2
    presses on the weakest classes, p = 1/2 spreads (claim B22); p = 0 weighs all classes alike, the perfect
    or best one included. With "gap" and p > 0 the best class weighs nothing.

    Args:
        accuracy: (C,) in 0..1.
        power: p >= 0.
        kind: one of `PRESSURES`.

    Returns:
        (C,) float64 on the CPU.

    Raises:
        ValueError: an accuracy that is NaN (an absent class, named) or outside 0..1, a negative power, an
            unknown kind, or (p > 0) no class with an error or no gap between classes: nothing to lift.
    """
    a = check_accuracy(accuracy)
    check_choice(kind, PRESSURES, "kind")
    if not isinstance(power, Real) or not 0 <= power < math.inf:
        raise ValueError(
            f"`power` must be a finite number of at least 0; found {power!r}. The paper takes 1."
        )
    need = 1 - a if kind == "error" else a.max() - a
    if power > 0 and not bool((need > 0).any()):
        lacking = (
            "Every class has accuracy 1, so none presses"
            if kind == "error"
            else f"All {len(a)} classes have the same accuracy, {float(a[0]):g}, so no gap presses"
        )
        raise ValueError(
            f"{lacking}: there is nothing to lift. Stop here, or pass `power=0` for equal weights."
        )
    if power > 0:
        need = need / need.max()  # a power of tiny errors must not underflow to a sum of zero
    pressed = need.pow(power)
    return pressed / pressed.sum()


def suggest_power(accuracy: Any, aim: str = "sigma") -> float:
    """Return the exponent p that the paper's rule picks from the ratio of the largest to the smallest error.

    Below 5: p = 2 to cut sigma, p = 1 to lift the worst class. From 5 on: p = 1/2, and p = 0 for the worst
    class. An error of zero makes the ratio infinite. The rule was formed on the two ablations that are said
    to confirm it, with one run for each exponent; the released runs do not apply it.

    Args:
        accuracy: (C,) in 0..1.
        aim: "sigma" or "worst".

    Raises:
        ValueError: an accuracy that is NaN or outside 0..1, another aim, or no class with an error.
    """
    check_choice(aim, ("sigma", "worst"), "aim")
    error = 1 - check_accuracy(accuracy)
    if not bool((error > 0).any()):
        raise ValueError("Every class has accuracy 1, so errors have no ratio: there is nothing to lift.")
    if float(error.max()) < _RATIO * float(error.min()):
        return 2.0 if aim == "sigma" else 1.0
    return 0.5 if aim == "sigma" else 0.0


def check_accuracy(accuracy: Any, name: str = "accuracy", classes: int | None = None) -> Tensor:
    """Return accuracies of classes as (C,) float64 on the CPU.

    Raises:
        ValueError: an entry is NaN (its class is named) or outside 0..1, or there are not `classes` of them.
    """
    a = as_vector(accuracy, name, classes).detach().cpu()
    absent = a.isnan().nonzero().flatten().tolist()
    if absent:
        raise ValueError(
            f"Class {absent[0]} has no accuracy in `{name}` (NaN), as when no image of it was scored; each "
            "class needs at least one calibration image. Add some, or leave the class out."
        )
    outside = ((a < 0) | (a > 1)).nonzero().flatten().tolist()
    if outside:
        raise ValueError(
            f"`{name}` must lie in 0..1; found {float(a[outside[0]]):g} for class {outside[0]}. "
            "Divide percentages by 100."
        )
    return a
