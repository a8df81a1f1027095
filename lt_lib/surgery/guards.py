"""How far each class may fall in a step of surgery: no-degradation constraints and their published forms."""

import math
from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_choice
from lt_lib.surgery.pressure import check_accuracy

GUARDS = ("as_written", "ablation", "cumulative")


def allowed_change(
    accuracy: Any,
    strong: float = 0.85,
    max_loss: float = 0.01,
    others: float | None = None,
    *,
    baseline: Any = None,
    strong_by: str = "current",
    cumulative: bool = False,
) -> Tensor:
    """Return the lowest change of accuracy that each class may be predicted to suffer; -inf for a free class.

    A class is strong where its accuracy lies above `strong`; it may lose `max_loss`. This step by step, so
    that nothing bounds what many steps cost a class; with `cumulative` the loss counts from the `baseline`:
    `baseline_j - max_loss - accuracy_j`, which is positive (the class must rise) once a class has lost more.

    Args:
        accuracy: (C,) in 0..1, of the present weights.
        strong: accuracy above which a class is strong, in 0..1; 1 guards none.
        max_loss: at least 0; a share of images, 0.01 for one percentage point.
        others: what a class that is not strong may lose; None: anything.
        baseline: (C,) accuracy of the untouched model; needed by the next two.
        strong_by: whether the "current" or the "baseline" accuracy makes a class strong.
        cumulative: whether losses count from the baseline.

    Returns:
        (C,) float64.

    Raises:
        ValueError: accuracies outside 0..1 or missing, limits outside their range, or no `baseline` where one
            is needed.
    """
    a = check_accuracy(accuracy)
    check_choice(strong_by, ("current", "baseline"), "strong_by")
    if not 0 <= strong <= 1:
        raise ValueError(
            f"`strong` must lie in 0..1; found {strong:g}. The paper takes 0.85; 1 guards no class."
        )
    for name, loss in (("max_loss", max_loss), ("others", math.inf if others is None else others)):
        if not loss >= 0:
            raise ValueError(
                f"`{name}` must be at least 0; found {loss:g}. It is what a class may lose: 0.01 for a point."
            )
    start = a
    if baseline is not None:
        start = check_accuracy(baseline, "baseline", len(a))
    elif cumulative or strong_by == "baseline":
        raise ValueError(
            "Losses or strong classes are judged against the untouched model, but `baseline` is None. Pass "
            "its accuracy of each class."
        )
    judged = start if strong_by == "baseline" else a
    weak_loss = math.inf if others is None else others
    allowed = a.new_tensor([weak_loss, max_loss])[(judged > strong).long()]
    return (start - a if cumulative else torch.zeros_like(a)) - allowed


def guard_preset(name: str, iterations: int = 10) -> dict[str, Any]:
    """Return the keywords of `allowed_change` (and of `solve_coefficients`) for a published constraint.

    - "as_written": a class whose current accuracy exceeds 0.85 may lose 0.01 in a step, the others anything
      (the paper's text, the released headline and focal-loss runs).
    - "ablation": a class whose accuracy before surgery exceeded 0.70 may lose `0.06 / iterations` in a step,
      any other 0.03 (released runs of the exponents and of ISIC-2019; 0.004 for 15 iterations).
    - "cumulative": a class above 0.85 before surgery may lose 0.01 in all (released CIFAR-100 runs).

    The last two are not in the paper's text; they need `baseline`.

    Raises:
        ValueError: another name, or fewer than one iteration.
    """
    check_choice(name, GUARDS, "name")
    if iterations < 1:
        raise ValueError(f"`iterations` must be at least 1; found {iterations}.")
    if name == "as_written":
        return {"strong": 0.85, "max_loss": 0.01}
    if name == "ablation":
        return {"strong": 0.70, "max_loss": 0.06 / iterations, "others": 0.03, "strong_by": "baseline"}
    return {"strong": 0.85, "max_loss": 0.01, "strong_by": "baseline", "cumulative": True}
