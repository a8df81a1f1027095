import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.collapse import class_losses, loss_imbalance, loss_ratio

POSITIVE = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=30)


def test_class_means_against_numpy_with_an_absent_class() -> None:
    # guards P9
    rng = np.random.default_rng(0)
    loss, labels = rng.random(50), rng.choice([0, 1, 3], 50)
    found = class_losses(torch.tensor(loss, dtype=torch.float32), torch.tensor(labels), 4)
    expected = [loss[labels == c].mean() if c != 2 else math.nan for c in range(4)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert found.dtype == torch.float64


def test_gradient_reaches_each_sample_as_one_over_its_class_count() -> None:
    loss = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    class_losses(loss, torch.tensor([0, 0, 2]), 3)[[0, 2]].sum().backward()
    assert loss.grad is not None
    assert loss.grad.tolist() == [0.5, 0.5, 1.0]


def test_imbalance_is_population_std_over_mean_and_leaves_absent_classes_out() -> None:
    assert loss_imbalance([1.0, 3.0]) == pytest.approx(0.5)
    assert loss_imbalance([1.0, math.nan, 3.0]) == pytest.approx(0.5)
    assert loss_ratio(torch.tensor([1.0, math.nan, 3.0])) == 3
    counts = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert loss_imbalance(counts) == pytest.approx(np.std(counts) / np.mean(counts), rel=1e-14)


@given(POSITIVE, st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_imbalance_is_scale_free_symmetric_and_bounded(loss: list[float], scale: float) -> None:
    rho, ratio = loss_imbalance(loss), loss_ratio(loss)
    assert 0 <= rho <= math.sqrt(len(loss) - 1) * (1 + 1e-12)
    assert loss_imbalance(loss[::-1]) == pytest.approx(rho, abs=1e-12)
    assert loss_imbalance([scale * x for x in loss]) == pytest.approx(rho, abs=1e-9)
    # Bhatia and Davis: the constant behind Theorem T1 (iv)
    assert rho <= (math.sqrt(ratio) - 1 / math.sqrt(ratio)) / 2 * (1 + 1e-9) + 1e-12


def test_zero_losses() -> None:
    assert math.isnan(loss_imbalance([0.0, 0.0]))
    assert math.isnan(loss_ratio([0.0, 0.0]))
    assert math.isinf(loss_ratio([0.0, 1.0]))


def test_bad_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="found -1 for class 1"):
        loss_imbalance([1.0, -1.0])
    with pytest.raises(ValueError, match="found inf for class 0"):
        loss_ratio([math.inf, 1.0])
    with pytest.raises(ValueError, match="all are nan"):
        loss_imbalance([math.nan, math.nan])
    with pytest.raises(ValueError, match='reduction="none"'):
        class_losses(torch.ones(()), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match=r"0\.\.1; found 2"):  # guards D6
        class_losses(torch.ones(2), torch.tensor([1, 2]), 2)
