import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.curvature.head_spikes import collapsed_head, head_hessian, head_spikes
from lt_lib.curvature.head_spikes_phases import gap_position, head_ratios, phase_boundaries


def dense(classes: int, p: float, radius: float, common: float, bias: bool) -> np.ndarray:
    """The Hessian of the theorem's statement, sum of Kronecker products over explicit class means."""
    means = np.zeros((classes, classes + 1))
    means[:, :classes] = radius * math.sqrt(classes / (classes - 1)) * (np.eye(classes) - 1 / classes)
    means[:, classes] = common
    if bias:
        means = np.hstack([means, np.ones((classes, 1))])
    total = np.zeros((classes * means.shape[1],) * 2)
    for c in range(classes):
        own = np.full(classes, (1 - p) / (classes - 1))
        own[c] = p
        total += np.kron(np.diag(own) - np.outer(own, own), np.outer(means[c], means[c])) / classes
    return total


TABLE = [  # classes, p, common, bias, levels, all at radius 2
    (4, 0.7, 0.0, False, [(0.373333, 1), (0.293333, 3), (0.133333, 5)]),
    (10, 0.9, 0.0, False, [(0.044444, 1), (0.0400549, 9), (0.00493827, 71)]),
    (10, 0.9, 2 / 3, False, [(0.044444, 10), (0.00493827, 80)]),
    (10, 0.9, 3.0, False, [(0.2075276, 9), (0.044444, 1), (0.0214162, 9), (0.00493827, 71)]),
    (10, 0.9, 3.0, True, [(0.2283009, 9), (0.044444, 1), (0.0216305, 9), (0.00493827, 71)]),
]


@pytest.mark.parametrize(("classes", "p", "common", "bias", "levels"), TABLE)
def test_values_and_multiplicities_of_theorem_t3(classes, p, common, bias, levels) -> None:
    found = head_spikes(classes, p, 2.0, common, bias)
    expected = np.concatenate([np.full(times, value) for value, times in levels])
    computed = np.linalg.eigvalsh(dense(classes, p, 2.0, common, bias))[::-1]
    np.testing.assert_allclose(found.eigenvalues()[: len(expected)], expected, atol=5e-7)
    np.testing.assert_allclose(found.eigenvalues(len(computed)), computed, atol=1e-14)
    assert not found.eigenvalues(len(computed))[len(expected) :].any()


@given(
    st.integers(3, 8),
    st.floats(0.01, 0.999),
    st.floats(0.1, 5),
    st.one_of(st.just(0.0), st.floats(0.01, 5)),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_all_eigenvalues_against_a_dense_solver(classes, p, radius, common, bias) -> None:
    matrix = dense(classes, p, radius, common, bias)
    found = head_spikes(classes, p, radius, common, bias)
    computed = np.linalg.eigvalsh(matrix)[::-1]
    np.testing.assert_allclose(found.eigenvalues(len(matrix)), computed, atol=1e-12 * computed[0], rtol=0)
    assert found.trace == pytest.approx(np.trace(matrix), rel=1e-12)
    q = (1 - p) / (classes - 1)
    assert found.upper * found.lower == pytest.approx(q * found.common**2 * found.temperature, rel=1e-12)
    rank = int((computed > 1e-12 * computed[0]).sum())
    if not 0 < found.common < 0.1 * radius:  # below that the smallest non-zero eigenvalue is near rounding
        assert rank == (classes * (classes - 1) if found.common > 0 else (classes - 1) ** 2)


@given(
    st.integers(3, 7),
    st.floats(0.05, 0.99),
    st.floats(0.5, 3),
    st.sampled_from([0.0, 0.4, 3.0]),
    st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_directions_are_orthonormal_eigenvectors_that_span_the_range(
    classes, p, radius, common, bias
) -> None:
    head = collapsed_head(classes, p, radius, common, dim=classes + 2, seed=1)
    matrix = head_hessian(head.means, head.probabilities, bias=bias)
    spikes = head_spikes(classes, p, radius, common, bias)
    blocks = spikes.directions(head.means, bias, mini_bulk=True)
    assert ("lower" in blocks) == (common > 0 or bias)
    for level in spikes.levels:
        if level.name in blocks:
            rows = blocks[level.name]
            assert len(rows) == level.multiplicity
            torch.testing.assert_close(rows @ matrix, level.value * rows, atol=1e-12, rtol=0)
    stacked = torch.cat(list(blocks.values()))
    torch.testing.assert_close(stacked @ stacked.T, torch.eye(len(stacked)).double(), atol=1e-12, rtol=0)
    assert float((matrix - stacked.T @ (stacked @ matrix)).abs().max()) < 1e-12


def test_the_self_dual_weight_is_the_temperature_direction() -> None:
    head = collapsed_head(5, 0.8, 1.5, 0.7)
    direction = head_spikes(5, 0.8, 1.5, 0.7).directions(head.means)["temperature"][0]
    torch.testing.assert_close(head.weight.flatten() / head.weight.norm(), direction)


def test_the_collapsed_head_has_these_probabilities() -> None:
    head = collapsed_head(6, 0.83, 1.3, 2.0, dim=9, seed=4)
    torch.testing.assert_close((head.means @ head.weight.T).softmax(1), head.probabilities)
    shared = head.means.mean(0)
    torch.testing.assert_close(shared.norm(), torch.tensor(2.0).double())
    torch.testing.assert_close((head.means - shared).norm(dim=1), torch.full((6,), 1.3).double())


@pytest.mark.parametrize("bias", [False, True])
def test_head_hessian_is_the_hessian_of_a_linear_layer(bias: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=g).double(), torch.randint(4, (12,), generator=g)
    share = torch.rand(12, generator=g).double()
    theta = torch.randn(16 if bias else 12, generator=g).double()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        logits = x @ flat[:12].view(4, 3).T + (flat[12:] if bias else 0)
        return (share * torch.nn.functional.cross_entropy(logits, y, reduction="none")).sum()

    logits = x @ theta[:12].view(4, 3).T + (theta[12:] if bias else 0)
    expected = torch.func.jacrev(torch.func.jacrev(loss))(theta)
    torch.testing.assert_close(head_hessian(x, logits.softmax(1), share, bias), expected)
    uniform = head_hessian(x, logits.softmax(1), torch.full((12,), 1 / 12, dtype=torch.float64), bias)
    torch.testing.assert_close(head_hessian(x, logits.softmax(1), bias=bias), uniform)


@given(st.integers(3, 30), st.floats(0.0, 1.0), st.floats(0.01, 6))
@settings(max_examples=50, deadline=None)
def test_the_largest_ratio_lies_where_the_boundaries_say(classes, share, gamma) -> None:
    p = 1 / classes + (0.02 + 0.97 * share) * (1 - 1 / classes)
    low, high = phase_boundaries(classes, p)
    assert low < high if classes >= 6 else low == high
    if min(abs(gamma - low), abs(gamma - high)) < 1e-6:
        return
    expected = classes if gamma < low else 2 * classes - 1 if gamma < high else classes - 1
    assert gap_position(classes, p, gamma) == expected
    values = head_spikes(classes, p, 1.0, math.sqrt(gamma)).eigenvalues()
    values = values[: (classes - 1) ** 2]  # below lies only lambda_-, when it is the smallest
    if gamma > 1 / (classes - 1):
        assert int((values[:-1] / values[1:]).argmax()) + 1 == expected


def test_boundaries_of_ten_classes_at_p_099() -> None:
    low, high = phase_boundaries(10, 0.99)
    assert low == pytest.approx(0.55335, abs=5e-6)
    assert high == pytest.approx(2.23049, abs=5e-6)
    assert head_ratios(10, 0.99, 0.0)[10] == pytest.approx(1 + 8.9 * 8 / 9)
    at_low, at_high = head_ratios(10, 0.99, low), head_ratios(10, 0.99, high)
    assert at_low[10] == pytest.approx(at_low[19])
    assert at_high[9] == pytest.approx(at_high[19])


def test_orthogonal_class_means_have_c_equal_spikes() -> None:
    spikes = head_spikes(7, 0.9, 1.0, math.sqrt(1 / 6))
    assert spikes.upper == pytest.approx(spikes.temperature, rel=1e-14)
    assert spikes.lower == pytest.approx(spikes.mini_bulk, rel=1e-14)
    assert gap_position(7, 0.9, 1 / 6) == 7


def test_spikes_vanish_like_the_loss() -> None:
    for loss in (1e-3, 1e-5):
        spikes = head_spikes(10, math.exp(-loss), 2.0, 1.0)
        assert spikes.temperature == pytest.approx(10 * 4 * loss / 81, rel=2 * loss)


def test_imbalance_keeps_the_hessian_between_two_multiples() -> None:
    head = collapsed_head(5, 0.8, 1.0, 0.5)
    share = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05], dtype=torch.float64)
    skewed = head_hessian(head.means, head.probabilities, share)
    balanced = head_hessian(head.means, head.probabilities)
    assert torch.linalg.eigvalsh(skewed - 5 * 0.05 * balanced).min() > -1e-14
    assert torch.linalg.eigvalsh(5 * 0.4 * balanced - skewed).min() > -1e-14


def test_refusals() -> None:
    for arguments in [(2, 0.9), (4, 1.0), (4, 0.0), (4, 0.9, 0.0), (4, 0.9, 1.0, -1.0)]:
        with pytest.raises(ValueError, match="must"):
            head_spikes(*arguments)
    with pytest.raises(ValueError, match="strictly between 1/4 and 1"):
        phase_boundaries(4, 0.2)
    with pytest.raises(ValueError, match="at least 12, the rank"):
        head_spikes(4, 0.9, 1.0, 1.0).eigenvalues(11)
    with pytest.raises(ValueError, match="at least 3 for a simplex ETF"):
        collapsed_head(4, 0.9, 1.0, 1.0, dim=3)
