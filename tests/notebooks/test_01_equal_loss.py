"""The algebra and numerics of the chapter on equal loss, by a computer algebra system and other solvers."""

from pathlib import Path
from typing import Any

import cvxpy as cp
import jupytext
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import sympy as sp
import torch

from lt_lib import collapse

TEXT = Path(__file__).resolve().parents[2] / "notebooks" / "01_equal_loss.md"
t, x = sp.symbols("t x", positive=True)


def cross_entropy(logits: list[sp.Expr], label: int) -> sp.Expr:
    return sp.log(sum(sp.exp(z) for z in logits)) - logits[label]


def phi(gap: sp.Expr, classes: int) -> sp.Expr:
    return sp.log(1 + (classes - 1) * sp.exp(-gap))


def centring(classes: int) -> sp.Matrix:
    return sp.eye(classes) - sp.ones(classes) / classes


@pytest.mark.parametrize("classes", [3, 4])
def test_value_and_gradient_of_cross_entropy_at_a_perfect_logit_vector(classes: int) -> None:
    z = sp.symbols(f"z0:{classes}")
    perfect = dict(zip(z, t * centring(classes)[:, 0], strict=True))
    loss = cross_entropy(list(z), 0)
    gap = sp.exp(loss.subs(perfect)) - sp.exp(phi(t, classes))
    assert sp.simplify(gap) == 0
    p = sp.exp(-phi(t, classes))
    gradient = sp.Matrix([sp.diff(loss, zk).subs(perfect) for zk in z])
    stated = -(1 - p) * sp.Rational(classes, classes - 1) * centring(classes)[:, 0]
    assert sp.simplify(gradient - stated) == sp.zeros(classes, 1)
    assert sp.simplify(sp.diff(phi(t, classes), t) + 1 - p) == 0


def test_losses_under_an_offset_have_the_stated_form() -> None:
    offset = sp.Matrix(sp.symbols("a0:4", real=True))
    for c in range(4):
        loss = cross_entropy(list(t * centring(4)[:, c] + offset), c)
        total = sum(sp.exp(a) for a in offset)
        stated = 1 + sp.exp(-t) * (total * sp.exp(-offset[c]) - 1)
        assert sp.simplify(sp.exp(loss) - stated) == 0


def test_spread_of_bounded_quantities_is_largest_where_the_proof_says() -> None:
    low, high = sp.symbols("m M", positive=True)
    parabola = (high * x - 1) * (1 - low * x)
    (top,) = sp.solve(sp.diff(parabola, x), x)
    assert sp.simplify(top - (low + high) / (2 * low * high)) == 0
    assert sp.simplify(parabola.subs(x, top) - (high - low) ** 2 / (4 * low * high)) == 0


def test_lower_bound_on_the_deviation_is_the_root_of_the_additive_bound() -> None:
    classes, q, spread = sp.symbols("C q xi", positive=True)
    root = 4 / (classes - 1) * (sp.sqrt(q**2 + (classes - 1) / 2 * spread) - q)
    assert sp.simplify((classes - 1) / 8 * root**2 + q * root - spread) == 0


def test_the_conserved_form_solves_the_flow_of_the_gap() -> None:
    drive, classes, gap = sp.symbols("K C tau", positive=True)
    speed = drive / (sp.exp(gap) + classes - 1)
    assert sp.simplify(sp.diff(sp.exp(gap) + (classes - 1) * gap, gap) * speed - drive) == 0
    assert sp.simplify(1 - sp.exp(-phi(gap, classes)) - (classes - 1) / (sp.exp(gap) + classes - 1)) == 0


@pytest.mark.parametrize("classes", [3, 5])
def test_metrics_of_unequal_lengths_expand_as_stated(classes: int) -> None:
    free = sp.symbols(f"e0:{classes - 1}")
    gains = [*free, -sum(free)]
    shift = centring(classes) * sp.diag(*gains) * centring(classes)
    s2 = sum(g**2 for g in gains) / classes
    assert sp.expand(shift.trace()) == 0
    assert sp.expand((shift**2).trace() - (classes - 2) * s2) == 0
    case = dict.fromkeys(free, 1)
    moved = centring(classes) + x * shift.subs(case)
    second, fourth = ((moved**k).trace() for k in (2, 4))
    value = (classes - 2) * s2.subs(case) / (classes - 1) * x**2
    nc2 = 2 - 2 * second / (sp.sqrt(classes - 1) * sp.sqrt(fourth))
    assert sp.simplify(sp.series(nc2 - 4 * value, x, 0, 3).removeO()) == 0
    assert sp.expand(second - (classes - 1) * (1 + value)) == 0


def test_nc3_and_offset_of_the_flow_have_their_exact_form() -> None:
    counts = np.array([500, 200, 90, 30, 10])
    state = collapse.free_feature_flow(counts, 1e6, omega=0.7)
    gap = state.gap.numpy()
    s = gap.std() / gap.mean()
    grown = 1 + 3 / 4 * s**2
    assert state.delta3**2 == pytest.approx(2 - 2 / np.sqrt(grown), rel=1e-9)
    assert state.delta_b == pytest.approx(s / np.sqrt(4 * grown), rel=1e-9)
    assert state.tau == pytest.approx(gap.mean() * np.sqrt(grown), rel=1e-9)


def ratios_under_constant_weights(counts: np.ndarray, by_class: bool, ends: list[float]) -> list[float]:
    def loss(gap: np.ndarray) -> np.ndarray:
        return np.log1p((len(counts) - 1) * np.exp(-gap))

    def velocity(_: float, gap: np.ndarray) -> np.ndarray:
        # the time of the remark: the common factor of all classes is divided out
        return -np.expm1(-loss(gap)) / loss(gap) / (counts if by_class else 1)

    found = scipy.integrate.solve_ivp(
        velocity, (0, ends[-1]), [1.0, 1.5, 2.5], t_eval=ends, rtol=1e-10, atol=1e-12
    )
    return [float(loss(gap)[0] / loss(gap)[2]) for gap in found.y.T]


def test_constant_weights_freeze_or_drive_apart_the_loss_ratios() -> None:
    counts = np.array([4.0, 2.0, 1.0])
    start, middle, end = ratios_under_constant_weights(counts, False, [0.0, 15.0, 25.0])
    assert start < middle == pytest.approx(end, rel=1e-5)
    apart = ratios_under_constant_weights(counts, True, [0.0, 10.0, 20.0])
    assert apart[1] > 100 * apart[0]
    assert apart[2] > 100 * apart[1]


def test_uncentred_classifier_can_lower_nc3_only_when_it_opposes_the_means() -> None:
    means = collapse.simplex_etf(4, 3)
    shift = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
    along = collapse.neural_collapse(means, torch.arange(4), means + shift)
    against = collapse.neural_collapse(means, torch.arange(4), -means + shift)
    assert along.nc3 < 1e-7 < along.nc3_uncentred
    assert against.nc3 > against.nc3_uncentred


def notebook_optimum() -> Any:
    """The notebook's own function, so that what is tested is what is shown."""
    (cell,) = (c for c in jupytext.read(TEXT).cells if "def optimum(" in c.source)
    names: dict[str, Any] = {
        "np": np, "torch": torch, "collapse": collapse, "minimize": scipy.optimize.minimize,
        "log_softmax": scipy.special.log_softmax,
    }  # fmt: skip
    exec(cell.source, names)
    return names["optimum"]


@pytest.mark.parametrize("ratio", [4.0, 40.0])
def test_peeled_minimum_is_that_of_the_convex_problem(ratio: float) -> None:
    classes, decay = 4, 0.03
    terms, weight, gradient, excess = notebook_optimum()(ratio, decay, classes)
    share = np.repeat([ratio, 1.0], 2) / (2 * ratio + 2)
    logits = cp.Variable((classes, classes))
    loss = share @ (cp.log_sum_exp(logits, axis=1) - cp.diag(logits))
    convex = cp.Problem(cp.Minimize(loss + decay * cp.normNuc(logits))).solve(solver=cp.CLARABEL)
    ours = share @ terms.class_loss.numpy() + decay * np.sum(weight**2)  # equal norms at a stationary point
    assert gradient < 1e-6
    assert excess < 1e-5
    assert ours == pytest.approx(convex, abs=1e-6)
