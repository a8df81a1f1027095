"""The macro factor, and the expected batch counts of a shuffled epoch against exact rationals."""

from fractions import Fraction
from math import comb

import pytest
import torch

from lt_lib.losses import inverse_frequency_weights
from lt_lib.reweighting import InverseReweighting, expected_batch_counts, macro_weights

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def cifar_counts(classes: int, largest: int, imbalance: int) -> list[int]:
    return [int(largest * imbalance ** (-c / (classes - 1))) for c in range(classes)]


def exact(counts, batch):
    total = sum(counts)
    sizes = {b: times for b, times in ((batch, total // batch), (total % batch, 1)) if b and times}
    miss = {b: [Fraction(comb(total - n, b), comb(total, b)) for n in counts] for b in sizes}
    return [float(sum(times * (1 - miss[b][c]) for b, times in sizes.items())) for c in range(len(counts))]


@pytest.mark.parametrize(("counts", "batch"), [([7, 3, 1], 4), ([5, 1], 6), ([5, 1], 20), ([1, 1, 1], 1)])
def test_expected_counts_are_exact(counts, batch):
    assert expected_batch_counts(counts, batch).tolist() == pytest.approx(exact(counts, batch), rel=1e-12)


def product(counts, batch):
    """Oracle for large sets: the miss as a product of exact rationals."""
    total, expected = sum(counts), []
    for n in counts:
        seen = Fraction(0)
        for b, times in ((batch, total // batch), (total % batch, 1)):
            miss = Fraction(1)
            for i in range(min(n, b)):
                miss *= Fraction(max(total - i - max(n, b), 0), total - i)
            seen += times * (1 - miss)
        expected.append(float(seen))
    return expected


@pytest.mark.parametrize(
    ("counts", "batch"),
    [([10**8, 3, 40], 100), ([10**12, 2, 7], 300), ([400, 30, 5], 64), ([1000, 2], 1001), ([999, 3], 1000)],
)
def test_expected_counts_keep_their_digits_in_large_sets(counts, batch):
    assert expected_batch_counts(counts, batch).tolist() == pytest.approx(product(counts, batch), rel=1e-12)


@pytest.mark.parametrize("total", [10, 1000, 10**8, 10**15])
@pytest.mark.parametrize("batch", [1, 3, 256])
def test_an_image_alone_is_in_exactly_one_batch(total, batch):
    assert expected_batch_counts([total - 1, 1], batch)[1].item() == 1


def test_expected_counts_agree_with_shuffled_epochs():
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([30, 6, 2]))
    generator = torch.Generator().manual_seed(0)
    seen = torch.zeros(3)
    for _ in range(500):
        order = labels[torch.randperm(38, generator=generator)]
        seen += sum(torch.bincount(part, minlength=3) > 0 for part in order.split(8))
    assert (seen / 500).tolist() == pytest.approx(expected_batch_counts([30, 6, 2], 8).tolist(), rel=0.04)


# the table of prediction PA8: imbalance, B of head and tail, beta of head and tail, batch 256
@pytest.mark.parametrize(
    ("classes", "largest", "imbalance", "head", "tail", "beta_head", "beta_tail"),
    [
        (10, 5000, 200, 44.0, 19.2, 0.83, 1.90),
        (10, 5000, 100, 49.0, 31.5, 0.92, 1.43),
        (10, 5000, 50, 55.0, 46.2, 0.97, 1.16),
        (10, 5000, 10, 80.0, 79.9, 1.00, 1.00),
        (100, 500, 200, 37.8, 2.0, 0.26, 4.95),
        (100, 500, 100, 43.0, 4.8, 0.39, 3.48),
        (100, 500, 50, 49.9, 9.1, 0.52, 2.81),
        (100, 500, 10, 76.9, 36.9, 0.78, 1.63),
    ],
)
def test_batch_counts_and_beta_of_the_cifar_sets(
    classes, largest, imbalance, head, tail, beta_head, beta_tail
):
    expected = expected_batch_counts(cifar_counts(classes, largest, imbalance), 256)
    assert [expected[0].item(), expected[-1].item()] == pytest.approx([head, tail], abs=0.06)
    beta = expected.clamp(min=1).reciprocal()
    beta = beta / beta.mean()
    assert [beta[0].item(), beta[-1].item()] == pytest.approx([beta_head, beta_tail], abs=0.006)


def test_tail_of_cifar10_lt_by_rationals():
    assert exact(CIFAR10_LT, 256)[-1] == pytest.approx(
        float(expected_batch_counts(CIFAR10_LT, 256)[-1]), rel=1e-10
    )


def test_macro_weights_by_hand():
    # max(B, 1)^-1 = 1, 1, 1/2, 1/4 over their mean 11/16
    assert macro_weights([0, 1, 2, 4]).tolist() == pytest.approx(
        [16 / 11, 16 / 11, 8 / 11, 4 / 11], rel=1e-14
    )
    assert macro_weights([1, 4], 0.5).tolist() == pytest.approx([4 / 3, 2 / 3], rel=1e-14)
    assert macro_weights([3, 9, 0], 0.0).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("gamma", [1.5, 12, 500, 1e308])
def test_large_exponents_leave_the_rarest_class(gamma):
    found = macro_weights([50, 30, 20], gamma)
    ratios = [(20 / n) ** gamma for n in (50, 30, 20)]
    assert found.tolist() == pytest.approx([3 * r / sum(ratios) for r in ratios], rel=1e-12)
    assert inverse_frequency_weights([50, 30, 20], gamma).tolist() == pytest.approx(found.tolist())


def test_a_large_gamma_survives_long_training_in_float32():
    loss = InverseReweighting([50, 30, 20], gamma=12, macro="step")
    loss.batch_counts.copy_(torch.tensor([20_000, 20_000, 10_000]))
    value = loss(torch.zeros(3, 3), torch.tensor([0, 1, 2]))
    assert torch.isfinite(value)
    assert loss.macro.tolist() == pytest.approx([3 / 4098, 3 / 4098, 3 * 4096 / 4098], rel=1e-2)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="`gamma` must be a number, at least 0"):
        macro_weights([1, 2], -1.0)
    with pytest.raises(ValueError, match="Class 1 has -2"):
        macro_weights([1, -2])
    with pytest.raises(ValueError, match="`batch` must be a number, at least 1"):
        expected_batch_counts([1, 2], 0)
    with pytest.raises(ValueError, match=r"`batch` must be a whole number of images; found 2\.5"):
        expected_batch_counts([1, 2], 2.5)
