"""tau-normalisation: classifier weights whose lengths say less about the class sizes."""

from typing import Any

import torch
from torch import Tensor

from lt_lib._checks import check_finite
from lt_lib.posthoc.adjustment import as_floats, check_overflow
from lt_lib.reweighting._entry import check_number


def tau_scales(weight: Any, tau: float) -> Tensor:
    r"""Return :math:`\|w_c\|^{-\tau}` for each row of `weight` (C, d), (C,) float64.

    Raises:
        ValueError: `weight` is no matrix of finite numbers, `tau` is not finite or so large that a scale
            leaves the range of float64, or a row is zero and so has no direction.
    """
    rows = as_floats(weight, "weight").detach()
    if rows.ndim != 2:
        raise ValueError(f"`weight` must be (C, d), one row a class; found shape {tuple(rows.shape)}.")
    check_finite(rows, "weight")
    lengths = rows.to(torch.float64).norm(dim=1)
    zero = (lengths == 0).nonzero().flatten().tolist()
    if zero:
        raise ValueError(
            f"Row {zero[0]} of `weight` is zero, so it has no direction to keep; each class needs a weight "
            "of positive length. Train the classifier first, or drop the class."
        )
    scales = lengths ** -check_number(tau, "tau")
    # a scale that underflows to 0 would drop its class as silently as one that overflows would win it
    check_overflow(torch.where(scales == 0, torch.inf, scales), "the length of a row to the power -tau", tau)
    return scales


def tau_normalise(weight: Any, tau: float) -> Tensor:
    r"""Return :math:`\tilde w_c = w_c/\|w_c\|^\tau`, (C, d) (Kang et al. 2020, arXiv 1910.09217, section 4).

    tau = 0 gives the weights as they are, tau = 1 rows of length one, between them a "soft" version; above 1
    the order of the lengths is reversed. The rule is for weights whose lengths follow the class sizes, as
    after plain training; it knows no class sizes itself. Whole numbers come back as float64.

    The paper drops the bias ("negligible effect"), and so does its released script; `adjusted_head` does this
    with `bias="drop"`, and can also keep it or scale it like the weights. The released script prints the
    accuracies at tau = 0, 0.1, ..., 2 on any part and leaves the choice to its reader; here `choose_tau`
    chooses on calibration data.

    Raises:
        ValueError: see `tau_scales`; or a row overflows in its type.
    """
    rows = as_floats(weight, "weight").detach()
    scaled = rows.to(torch.float64) * tau_scales(rows, tau)[:, None]
    return check_overflow(scaled.to(rows.dtype), "a normalised row", tau)
