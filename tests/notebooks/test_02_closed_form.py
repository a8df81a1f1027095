"""Steps of the proofs in the chapter on the closed form, by computer algebra and by listing every case."""

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import sympy as sp

from lt_lib import reweighting

L, mean, alpha, w0, m, u = sp.symbols("L Lbar alpha w0 m u", positive=True)
weight = (mean * L + alpha * w0) / (L**2 + alpha)


def test_lipschitz_constant_of_the_prior_part_is_attained_where_the_proof_says() -> None:
    slope = 2 * alpha * w0 * L / (L**2 + alpha) ** 2
    (top,) = sp.solve(sp.diff(slope, L), L)
    assert sp.simplify(top - sp.sqrt(alpha / 3)) == 0
    assert sp.simplify(slope.subs(L, top) - 3 * sp.sqrt(3) * w0 / (8 * sp.sqrt(alpha))) == 0


def test_both_forms_of_the_peak_and_the_alpha_of_a_wanted_cap() -> None:
    peak = (sp.sqrt(alpha**2 * w0**2 + alpha * mean**2) - alpha * w0) / mean
    cap = (w0 + sp.sqrt(w0**2 + mean**2 / alpha)) / 2
    assert sp.simplify(mean / (2 * peak) - cap) == 0
    assert sp.simplify(mean**2 / (4 * cap * (cap - w0)) - alpha) == 0
    assert sp.simplify(mean * peak**2 - alpha * (mean - 2 * w0 * peak)) == 0


def test_peak_when_the_mean_contains_the_class_itself() -> None:
    others = sp.Symbol("S", positive=True)
    own = weight.subs(mean, (L + others) / m)
    stated = -others * L**2 + 2 * alpha * (1 - m * w0) * L + alpha * others
    assert sp.simplify(sp.diff(own, L) * m * (L**2 + alpha) ** 2 - stated) == 0
    assert sp.limit(own, L, sp.oo) == 1 / m


def test_deviation_of_the_weighted_loss() -> None:
    assert sp.simplify(weight * L - mean - alpha * (w0 * L - mean) / (L**2 + alpha)) == 0
    assert sp.simplify(weight - w0 - L * (mean - w0 * L) / (L**2 + alpha)) == 0


def test_coefficient_through_the_weights_by_differentiating_the_loss() -> None:
    q = sp.symbols("q0:3", positive=True)
    average = sum(q) / 3
    loss = sum((average * v + alpha * w0) / (v**2 + alpha) * v for v in q)
    share = sum(v**2 / (v**2 + alpha) for v in q) / 3
    direct = alpha * (2 * average * q[0] + w0 * (alpha - q[0] ** 2)) / (q[0] ** 2 + alpha) ** 2
    assert sp.simplify(sp.diff(loss, q[0]) - direct - share) == 0


def test_a_class_can_be_pushed_up_only_beyond_nine_prior_weighted_classes() -> None:
    alone = 2 * u / m + w0 * (1 - u) + u * (1 + u) / m  # other losses 0, times (1 + u)^2
    quadratic = u**2 + (3 - m * w0) * u + m * w0
    assert sp.expand(alone * m - quadratic) == 0
    assert sp.factor(sp.discriminant(quadratic.subs(w0, 1), u) - (m - 1) * (m - 9)) == 0
    assert quadratic.subs({m: 9, w0: 1, u: 3}) == 0
    bound = (1 - u) / (1 + u) ** 2
    assert sp.solve(sp.diff(bound, u), u) == [3]
    assert bound.subs(u, 3) == sp.Rational(-1, 8)


@pytest.mark.parametrize(("counts", "batch"), [((3, 2, 2), 3), ((4, 1, 1, 2), 2), ((5, 2), 6)])
def test_generating_function_gives_the_share_of_a_class_in_exact_fractions(
    counts: tuple[int, ...], batch: int
) -> None:
    t, x = sp.symbols("t x")
    labels = [c for c, n in enumerate(counts) for _ in range(n)]
    batches = [{labels[i] for i in drawn} for drawn in itertools.combinations(range(sum(counts)), batch)]
    for c, size in enumerate(counts):
        listed = sum(Fraction(int(c in present), len(present)) for present in batches) / len(batches)
        product = (1 + x) ** size - 1  # q cancels: binomial weights in place of probabilities
        for k, other in enumerate(counts):
            product *= 1 if k == c else 1 + t * ((1 + x) ** other - 1)
        coefficient = sp.Poly(sp.expand(product), x).coeff_monomial(x**batch)
        share = sp.integrate(coefficient, (t, 0, 1)) / comb(sum(counts), batch)
        assert share == sp.Rational(listed.numerator, listed.denominator)
    if sum(counts) % batch == 0:  # all batches of an epoch are alike
        held = [sum(c in present for present in batches) / len(batches) for c in range(len(counts))]
        per_epoch = [share * (sum(counts) // batch) for share in held]
        np.testing.assert_allclose(reweighting.expected_batch_counts(counts, batch), per_epoch, rtol=1e-12)


def test_macro_factor_never_raises_the_mean_step() -> None:
    for seed in range(20):
        counts = np.sort(np.random.default_rng(seed).integers(1, 500, 12))[::-1].copy()
        expected = np.asarray(reweighting.expected_batch_counts(counts, 32))
        factor = 1 / expected / (1 / expected).mean()
        assert counts @ factor / counts.sum() <= 1 + 1e-12
