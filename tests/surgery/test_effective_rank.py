"""Effective rank against closed forms and the published noise levels."""

import math

import numpy as np
import pytest
import torch

from lt_lib.surgery import effective_rank, rank_summary


def rotation(size: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def with_values(values: list[float], directions: int, classes: int) -> np.ndarray:
    core = np.zeros((directions, classes))
    np.fill_diagonal(core, values + [0.0] * (min(directions, classes) - len(values)))
    return rotation(directions, 1) @ core @ rotation(classes, 2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0, 2.0, 2.0], 3.0),
        ([5.0], 1.0),
        ([3.0, 4.0], math.exp(-0.36 * math.log(0.36) - 0.64 * math.log(0.64))),  # squares 9 and 16 of 25
    ],
)
def test_closed_forms(values: list[float], expected: float) -> None:
    S = with_values(values, 6, 9)
    assert effective_rank(S) == pytest.approx(expected, rel=1e-9)
    assert effective_rank(1e200 * S) == pytest.approx(expected, rel=1e-9)
    assert effective_rank(torch.from_numpy(S).T) == pytest.approx(expected, rel=1e-9)
    summary = rank_summary(S, draws=2)
    assert summary.effective == pytest.approx(expected, rel=1e-9)
    assert summary.algebraic == len(values)
    shares = np.array(values) / sum(values)
    assert summary.roy_vetterli == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-6)


def test_published_energy_of_two_directions() -> None:
    # arXiv 2605.07790, CIFAR-10: 6.41, 5.22, 3.99 of a Frobenius norm 9.76: 71.8 % in the first two
    rest = math.sqrt((9.76**2 - 6.41**2 - 5.22**2 - 3.99**2) / 6)
    summary = rank_summary(with_values([6.41, 5.22, 3.99] + [rest] * 6, 9, 10), draws=2)
    assert float(summary.shares[:2].sum()) == pytest.approx(0.718, abs=1e-3)
    torch.testing.assert_close(summary.values[:3], torch.tensor([6.41, 5.22, 3.99]).double())


@pytest.mark.parametrize(("shape", "expected"), [((8, 10), 5.2), ((9, 10), 5.6), ((7, 8), 4.4)])
def test_noise_has_a_high_effective_rank(shape: tuple[int, int], expected: float) -> None:
    null = rank_summary(np.eye(*shape), draws=1000, level=0.68).nulls["gaussian"]
    assert null.estimate == pytest.approx(expected, abs=0.05)
    assert (null.high - null.low) / 2 == pytest.approx(0.4, abs=0.06)
    drawn = [effective_rank(np.random.default_rng(i).normal(size=shape)) for i in range(300)]
    assert np.mean(drawn) == pytest.approx(null.estimate, abs=0.1)


def test_nulls_keep_what_they_say() -> None:
    S = with_values([5.0, 1.0], 9, 10)
    nulls = rank_summary(S, errors=np.full((9, 10), 0.3), seed=4).nulls
    assert nulls["errors"].estimate == pytest.approx(nulls["gaussian"].estimate)  # scale does not matter
    assert nulls["permuted"].low > effective_rank(S)  # structure is lost
    single = np.zeros((9, 10))
    single[0, 0] = 1.0
    lone = rank_summary(single, errors=single).nulls
    assert lone["permuted"].estimate == pytest.approx(1)
    assert lone["errors"].estimate == pytest.approx(1)
    assert set(rank_summary(S, draws=2).nulls) == {"gaussian", "permuted"}
    assert rank_summary(S, seed=4, errors=np.full((9, 10), 0.3)).nulls == nulls
    assert rank_summary(S, seed=5).nulls["gaussian"] != nulls["gaussian"]


def test_axes_are_named_by_classes() -> None:
    S = np.zeros((2, 3))
    S[1] = [0.0, -4.0, 3.0]
    S[0] = [1.0, 0.0, 0.0]
    summary = rank_summary(S, class_names=["plane", "cat", "dog"], draws=2)
    assert summary.axis(0, classes=2) == "cat +0.80, dog -0.60"
    assert summary.axis(1, classes=1) == "plane +1.00"
    torch.testing.assert_close(summary.spikes[:, 0], torch.tensor([0.0, -1.0]).double())
    rebuilt = summary.spikes @ torch.diag(summary.values) @ summary.classes
    torch.testing.assert_close(rebuilt, torch.from_numpy(S))
    np.testing.assert_allclose(summary.gram, S.T @ S)


def test_overlap_is_the_cosine_of_columns() -> None:
    S = [[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    overlap = rank_summary(S, draws=2).overlap
    torch.testing.assert_close(overlap[:3, :3], torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]]).double())
    assert bool(overlap[3].isnan().all())


@pytest.mark.parametrize(
    ("S", "more", "message"),
    [
        (np.zeros((2, 2)), {}, "`S` is zero"),
        ([[1.0, math.nan]], {}, "`S` must be finite"),
        ([1.0, 2.0], {}, r"`S` must be a real matrix \(K, C\)"),
        (np.eye(2), {"class_names": ["a"]}, "must hold 2 names"),
        (np.eye(2), {"errors": np.eye(3)}, r"of the shape \(2, 2\)"),
        (np.eye(2), {"errors": -np.eye(2)}, "smallest -1"),
        (np.eye(2), {"errors": np.zeros((2, 2))}, "not all 0"),
        (np.eye(2), {"draws": 1}, "`draws` must be at least 2"),
        (np.eye(2), {"level": 1.0}, "`level` between 0 and 1"),
    ],
)
def test_bad_input_is_answered_in_words(S: object, more: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_summary(S, **more)
