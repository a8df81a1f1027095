"""The step of surgery against hand-solved problems, a conic solver and its own optimality conditions."""

import math
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.surgery import (
    SignalToNoise,
    allowed_change,
    class_pressure,
    energy_radius,
    solve_coefficients,
    spike_coefficients,
)
from lt_lib.surgery.programme import _missed


def instance(seed: int, directions: int, classes: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return S and accuracies: dense, of few flipped images (ties and zeros), of low rank or ill-scaled."""
    rng = np.random.default_rng(seed)
    S = rng.normal(size=(directions, classes))
    if kind == "flips":
        S = rng.integers(-2, 3, size=S.shape) * 0.5
    elif kind == "low rank":
        S = rng.normal(size=(directions, 2)) @ rng.normal(size=(2, classes))
    elif kind == "ill-scaled":
        S *= np.exp(3 * rng.normal(size=(directions, 1)))
    return S, rng.uniform(0.3, 1, classes)


@lru_cache
def cone_programme(shape: str) -> tuple[cp.Problem, dict[str, cp.Parameter]]:
    """Return the problem for up to SIZE directions and classes, compiled once."""
    alpha = cp.Variable(SIZE)
    p = {name: cp.Parameter(SIZE) for name in ("g", "floors", "sides")}
    p |= {"S": cp.Parameter((SIZE, SIZE)), "radius": cp.Parameter(nonneg=True)}
    limit = cp.norm(alpha, 2) <= p["radius"] if shape == "ball" else cp.abs(alpha) <= p["sides"]
    return cp.Problem(cp.Maximize(p["g"] @ alpha), [limit, p["S"].T @ alpha >= p["floors"]]), p


def conic(
    S: np.ndarray, w: np.ndarray, floors: np.ndarray, radius: float, sides: np.ndarray | None
) -> tuple[str, float]:
    """Solve the same problem by an interior-point method for cones; absent rows and columns are zeros."""
    problem, p = cone_programme("ball" if sides is None else "box")
    padded, sizes = np.zeros((SIZE, SIZE)), np.full(SIZE, radius)
    padded[: len(S), : len(w)] = S
    sizes[: len(S)] = radius if sides is None else sides
    lowest = np.full(SIZE, -FREE)
    lowest[: len(w)] = np.maximum(floors, -FREE * max(1.0, np.abs(S).max()))
    p["S"].value, p["g"].value, p["floors"].value = padded, padded[:, : len(w)] @ w, lowest
    p["radius"].value, p["sides"].value = radius, sizes
    problem.solve(solver=cp.CLARABEL)
    return problem.status, float(problem.value)


SIZE, FREE = 12, 10.0  # a class that may fall by so much is free
KINDS = ("dense", "flips", "low rank", "ill-scaled")
CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "directions": st.integers(1, 12),
        "classes": st.integers(2, 12),
        "kind": st.sampled_from(KINDS),
    }
)


@pytest.mark.parametrize("shape", ["ball", "box"])
@settings(max_examples=50, deadline=None)
@given(
    case=CASES,
    strong=st.sampled_from([0.0, 0.7, 0.85, 1.0]),
    max_loss=st.sampled_from([0.0, 0.01, 0.1]),
    others=st.sampled_from([None, 0.03]),
    lost=st.sampled_from([None, 0.0, 0.02, 0.2]),
)
def test_agrees_with_a_conic_solver(
    shape: str,
    case: dict[str, Any],
    strong: float,
    max_loss: float,
    others: float | None,
    lost: float | None,
) -> None:
    S, a = instance(**case)
    values = np.geomspace(50, 1, len(S))
    baseline = None if lost is None else np.clip(a + lost * np.sin(np.arange(len(a))), 0, 1)
    guards = {"strong": strong, "max_loss": max_loss, "others": others, "baseline": baseline}
    guards["cumulative"] = lost is not None
    w = class_pressure(a).numpy()
    found = solve_coefficients(S, w, a, 0.3, shape, values, **guards)
    sides = None if shape == "ball" else 0.3 * np.sqrt(values[-1] / values)
    floors = allowed_change(a, **guards).numpy()
    status, best = conic(S, w, floors, 0.3, sides)
    alpha = found.alpha.numpy()
    if not found.feasible:
        assert status not in ("optimal", "optimal_inaccurate") or barely(S, floors, 0.3, sides)
        assert not alpha.any()
        assert "Infeasible" in found.status
        return
    assert found.converged, found.status
    size = max(1.0, float(np.abs(S).max()))
    assert found.gain == pytest.approx(best, abs=1e-5 * size)
    assert found.gain == pytest.approx(float(w @ (S.T @ alpha)), abs=1e-12 * size)
    assert (
        np.linalg.norm(alpha) <= 0.3 * (1 + 1e-9) if sides is None else (np.abs(alpha) <= sides + 1e-9).all()
    )
    assert (S.T @ alpha - floors).min() >= -1e-7 * size
    assert found.active == tuple(j for j in found.active if abs(S[:, j] @ alpha - floors[j]) <= 1e-5 * size)


def barely(S: np.ndarray, floors: np.ndarray, radius: float, sides: np.ndarray | None) -> bool:
    """Say whether the conic solver finds no room either once the floors rise by its tolerance."""
    size = np.abs(S).max()
    status, _ = conic(S, np.zeros(S.shape[1]), floors + 1e-6 * size, radius, sides)
    return "infeasible" in status


def test_two_spikes_solved_by_hand() -> None:
    # max a_1 with a_1^2 + a_2^2 = r^2 and a_2 / 2 - a_1 = -m: 5 a_1^2 - 8 m a_1 + 4 m^2 - r^2 = 0
    S, m, r = [[1.0, -1.0], [0.0, 0.5]], 0.01, 0.05
    found = solve_coefficients(S, [1, 0], [0.5, 0.9], r, max_loss=m)
    first = (4 * m + math.sqrt(5 * r * r - 4 * m * m)) / 5
    torch.testing.assert_close(
        found.alpha, torch.tensor([first, 2 * (first - m)]).double(), rtol=1e-6, atol=0
    )
    assert found.active == (1,)
    assert found.at_limit
    assert "classes 1 bind" in found.status


@settings(max_examples=25, deadline=None)
@given(case=CASES)
def test_without_guards_the_step_follows_the_gradient(case: dict[str, Any]) -> None:
    S, a = instance(**case)
    w = class_pressure(a).numpy()
    g = S @ w
    found = solve_coefficients(S, w, a, 0.02, strong=1)
    np.testing.assert_allclose(found.alpha, 0.02 * g / np.linalg.norm(g), rtol=1e-9, atol=1e-15)
    values = np.linspace(9, 1, len(S))
    boxed = solve_coefficients(S, w, a, 0.02, "box", values, strong=1)
    sides = 0.02 / np.sqrt(values / values.min())
    noise = np.abs(g) < 1e-12 * (np.abs(S) @ w)  # cancels: no reason to go either way
    np.testing.assert_allclose(boxed.alpha, np.where(noise, 0, sides * np.sign(g)), rtol=1e-9)
    assert not found.active
    assert max(found.gap, boxed.gap) < 1e-12


@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1e5, 1e12])
@pytest.mark.parametrize("shape", ["ball", "box"])
def test_units_of_length_do_not_matter(unit: float, shape: str) -> None:
    for seed in range(4):
        S, a = instance(seed, 9, 10, "dense")
        w, values = class_pressure(a), np.geomspace(90, 3, 9)
        one = solve_coefficients(S, w, a, 0.05, shape, values, strong=0.5)
        other = solve_coefficients(S / unit, w, a, 0.05 * unit, shape, values, strong=0.5)
        torch.testing.assert_close(other.alpha / unit, one.alpha, rtol=1e-5, atol=1e-8)
        assert other.active == one.active
        assert one.active
        assert one.converged
        assert other.converged


def test_a_step_that_is_not_the_best_is_not_certified() -> None:
    S, a = instance(3, 6, 8, "dense")
    g = S @ class_pressure(a).numpy()
    g /= np.linalg.norm(g)
    A, b = S.T / np.linalg.norm(S.T, axis=1)[:, None], np.full(8, -0.1)
    assert _missed(g, A[:0], b[:0], "ball", g) == pytest.approx(0, abs=1e-15)
    assert _missed(g, A[:0], b[:0], "ball", 0.9 * g) >= 0.1 - 1e-12
    found = solve_coefficients(S, class_pressure(a), a, 1.0, strong=0, max_loss=0.1)
    assert found.gap < 1e-6
    missed = [_missed(g, A, b, "ball", scale * found.alpha.numpy()) for scale in (0.5, 0.99)]
    assert all(
        gap >= share * float(g @ found.alpha.numpy()) for gap, share in zip(missed, (0.5, 0.01), strict=True)
    )


def test_spike_coefficients_are_those_of_the_text() -> None:
    S, a = instance(1, 9, 10, "dense")
    found = spike_coefficients(S, a, 0.02, power=2.0)
    expected = solve_coefficients(S, class_pressure(a, 2.0), a, 0.02)
    assert torch.equal(found, expected.alpha)
    assert found.dtype == torch.float64
    assert not torch.equal(found, spike_coefficients(S, a, 0.02))


# a spike that lifts class 0 only by what it takes from class 1
TRADE = [[1.0, -1.0], [-0.5, 0.5]]


def test_each_zero_step_says_why() -> None:
    stuck = solve_coefficients(TRADE, [0.7, 0.3], [0.9, 0.95], 0.02, max_loss=0)
    assert not stuck.alpha.any()
    assert stuck.converged
    assert stuck.active == (0, 1)
    assert "All 2 classes are guarded" in stuck.status
    assert "every feasible step" in stuck.status  # (1, 2) moves no class: feasible, and worth nothing
    pinned = solve_coefficients([[1.0, -1.0]], [0.7, 0.3], [0.9, 0.95], 0.02, max_loss=0)
    assert not pinned.alpha.any()
    assert "alpha = 0 is the only feasible point" in pinned.status
    one_way = solve_coefficients([[1.0, -1.0]], [0, 1], [0.9, 0.5], 0.02, max_loss=0)  # alpha > 0 is allowed
    assert not one_way.alpha.any()
    assert one_way.converged
    assert "every feasible step" in one_way.status
    idle = solve_coefficients(TRADE, [0.5, 0.5], [0.9, 0.95], 0.02)
    assert not idle.alpha.any()
    assert idle.converged
    assert "S w = 0" in idle.status
    rounding = [[0.1, 0.2, -0.3], [1.0, 0.0, 0.0]]  # the first row sums to 6e-17, not to 0
    cancelled = solve_coefficients(rounding, [1, 1, 1], [0.5, 0.5, 0.5], 0.02, "box", [1.0, 1.0])
    assert cancelled.alpha.tolist() == [0, 0.02]
    dead = solve_coefficients(np.zeros((3, 2)), [0.5, 0.5], [0.9, 0.95], 0.02)
    assert "S w = 0" in dead.status


@pytest.mark.parametrize("shape", ["ball", "box"])
def test_what_was_lost_is_asked_back_and_the_status_says_how_far_that_is(shape: str) -> None:
    def solve(radius: float) -> Any:
        return solve_coefficients(
            np.diag([1.0, 2.0]), [0.5, 0.5], [0.8, 0.8], radius, shape, [1.0, 1.0], strong=0.85,
            baseline=[0.9, 0.8], strong_by="baseline", cumulative=True,
        )  # fmt: skip

    short = solve(0.03)  # class 0 must win 0.1 - 0.01 back, at 1 per unit length
    assert not short.feasible
    assert not short.converged
    assert not short.alpha.any()
    assert "classes 0 have lost" in short.status
    assert "3 times as long" in short.status
    enough = solve(0.0901)
    assert enough.feasible
    assert enough.converged
    assert float(enough.predicted[0]) >= 0.09 - 1e-8
    hopeless = solve_coefficients(
        [[0.0, 1.0]], [0.5, 0.5], [0.8, 0.8], 1.0, shape, [1.0], 0.85, baseline=[0.9, 0.8],
        strong_by="baseline", cumulative=True,
    )  # fmt: skip
    assert "no step of any length" in hopeless.status
    opposed = solve_coefficients(
        [[1.0, -1.0]], [0.5, 0.5], [0.8, 0.9], 1.0, shape, [1.0], 0.85, baseline=[0.9, 0.9],
        strong_by="baseline", cumulative=True,
    )  # fmt: skip
    assert "no step of any length" in opposed.status


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"S": [[1.0, math.nan], [0, 1]]}, r"`S` must be finite; found 1 .*\(0, 1\)"),
        ({"S": [1.0, 2.0]}, r"`S` must be a real matrix \(K, C\)"),
        ({"S": np.zeros((0, 2))}, r"`S` must be a real matrix"),
        ({"S": np.ones((2, 3))}, r"column for each of the 2 classes .* \(2, 3\)"),
        ({"radius": 0.0}, r"`radius` must be a positive length; found 0"),
        ({"radius": math.inf}, r"`radius` must be a positive length; found inf"),
        ({"radius": "0.1"}, r"`radius` must be a positive length; found '0.1'"),
        ({"shape": "balls"}, r"Did you mean `ball`"),
        ({"shape": "box"}, r"pass `values`"),
        ({"shape": "box", "values": [2.0, -0.1]}, r"positive eigenvalue .* smallest -0.1"),
        ({"shape": "box", "values": [2.0]}, r"for each of the 2 rows of `S`; found 1"),
        ({"pressure": [0.0, 0.0]}, r"not all of them 0"),
        ({"pressure": [1.0, -0.5]}, r"at least 0.* found -0.5"),
        ({"accuracy": [0.5, math.nan]}, r"Class 1 has no accuracy"),
        ({"accuracy": [50.0, 90.0]}, r"Divide percentages by 100"),
        ({"accuracy": [0.5, 0.9, 0.9]}, r"each of the 2 classes; found 3"),
        ({"max_loss": -0.01}, r"`max_loss` must be at least 0"),
        ({"others": math.nan}, r"`others` must be at least 0"),
        ({"strong": 85}, r"`strong` must lie in 0..1; found 85"),
        ({"cumulative": True}, r"`baseline` is None"),
        ({"strong_by": "baseline"}, r"`baseline` is None"),
    ],
)
def test_bad_input_is_answered_in_words(change: dict[str, Any], message: str) -> None:
    given_: dict[str, Any] = {"S": np.eye(2), "pressure": [0.6, 0.4], "accuracy": [0.5, 0.9], "radius": 0.02}
    with pytest.raises(ValueError, match=message):
        solve_coefficients(**{**given_, **change})


def test_perfect_accuracy_leaves_nothing_to_lift() -> None:
    with pytest.raises(ValueError, match="Every class has accuracy 1"):
        spike_coefficients(np.eye(3), [1.0, 1.0, 1.0], 0.02)


def test_radius_of_an_energy_costs_that_energy() -> None:
    length = energy_radius(0.01, 98.7)
    assert 0.5 * 98.7 * length**2 == pytest.approx(0.01)
    with pytest.raises(ValueError, match="`value` must be positive"):
        energy_radius(0.01, -1.0)
    assert SignalToNoise(start=length, floor=length / 10).begin(0.1).radius == length
