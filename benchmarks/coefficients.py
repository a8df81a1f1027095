"""Time of the coefficient problem of surgery, beside a conic solver: 99 spikes, 100 classes, one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.coefficients [--quick]

Instances: a random sensitivity matrix, one of rank 15 with noise, and one of few flipped images, with three
sets of guards: strong classes as in the paper (0.85 / 0.01), all classes (0.01), and nothing to be lost at
all. Ball and box. Milliseconds of CPU time, which other load does not lengthen much, median and largest over
the instances. "active" is the mean number of guards that bind, "gap" the largest certified gap (inf: one was
not certified). "clarabel" is that solver's own wall time, without the modelling; "difference" the largest
between the two gains. Limit: 50 ms for 99 x 100.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from lt_lib.surgery import allowed_change, class_pressure, solve_coefficients

SIZES = ((9, 10), (99, 100))
RADIUS = 0.02
GUARDS: dict[str, dict[str, float]] = {
    "strong above 0.85": {},
    "every class": {"strong": 0.0},
    "no loss at all": {"strong": 0.0, "max_loss": 0.0},
}


def instance(kind: int, seed: int, directions: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    S = rng.normal(size=(directions, classes))
    if kind == 1:
        S = rng.normal(size=(directions, 15)) @ rng.normal(size=(15, classes)) + 0.1 * S
    elif kind == 2:
        S = rng.integers(-3, 4, size=S.shape) * 0.02 / (2 * RADIUS)  # images of 50 a class that flip
    return S, rng.uniform(0.3, 1, classes)


def conic(S: np.ndarray, a: np.ndarray, guard: dict[str, float]) -> tuple[float, float] | None:
    """Return Clarabel's own milliseconds for the ball's problem and its optimum; None if not installed."""
    try:
        import cvxpy as cp
    except ImportError:
        return None
    alpha = cp.Variable(len(S))
    floors, w = allowed_change(a, **guard).numpy(), class_pressure(a).numpy()
    some = np.isfinite(floors)
    guards = [S.T[some] @ alpha >= floors[some]] if some.any() else []
    problem = cp.Problem(cp.Maximize(w @ S.T @ alpha), [cp.norm(alpha, 2) <= RADIUS, *guards])
    problem.solve(solver=cp.CLARABEL)
    return 1e3 * problem.solver_stats.solve_time, float(problem.value)


def row(size: tuple[int, int], shape: str, name: str, rounds: int) -> str:
    values = np.geomspace(500, 5, size[0])
    times, other, active, gaps, differences = [], [], [], [], []
    for number in range(rounds):
        S, a = instance(number % 3, number, *size)
        w = class_pressure(a)
        start = time.process_time()
        found = solve_coefficients(S, w, a, RADIUS, shape, values, **GUARDS[name])
        times.append(1e3 * (time.process_time() - start))
        active.append(len(found.active))
        gaps.append(found.gap if found.converged else float("inf"))
        peer = conic(S, a, GUARDS[name]) if shape == "ball" else None
        if peer:
            other.append(peer[0])
            differences.append(abs(peer[1] - found.gain))
    cells = (
        f"{size[0]:>3} x {size[1]:<4} {shape:5} {name:18} {statistics.median(times):8.2f} {max(times):8.2f}"
    )
    cells += f" {statistics.mean(active):7.1f} {max(gaps):8.1e}"
    return cells + (f" {statistics.median(other):10.1f} {max(differences):9.1e}" if other else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 instances a row instead of 30")
    rounds = 6 if parser.parse_args().quick else 30
    torch.set_num_threads(1)
    solve_coefficients(np.eye(2), [1, 0], [0.5, 0.9], RADIUS, strong=0)  # imports
    print("  K x C    shape guards               median  largest  active      gap   clarabel difference")
    for size in SIZES:
        for shape in ("ball", "box"):
            for name in GUARDS:
                print(row(size, shape, name, rounds), flush=True)


if __name__ == "__main__":
    main()
