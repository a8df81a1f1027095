"""What screening promises: margins that agree with predictions, and how rarely a near flip goes unseen."""

import math

import pytest
import torch

from lt_lib.surgery.screening import audit_sample, margins, missed, thresholds, undecided, within_noise


def test_a_margin_is_positive_exactly_where_argmax_is_right() -> None:
    z = torch.randint(-2, 3, (500, 4), generator=torch.Generator().manual_seed(0)).float()  # many ties
    y = torch.arange(500) % 4
    assert torch.equal(margins(z, y) > 0, z.argmax(1) == y)
    rest = torch.stack([row[torch.arange(4) != c].max() for row, c in zip(z, y, strict=True)])
    torch.testing.assert_close(margins(z, y), z[torch.arange(500), y] - rest)
    assert margins(torch.tensor([[1.0, math.nan]]), torch.tensor([0])).item() == -math.inf


@pytest.mark.parametrize("tail", [1.0, 2.0])
def test_images_near_a_flip_that_go_unseen_are_few_on_average(tail: float) -> None:
    # moves with Pareto tails, as hard as they come: the bound (1 - a) / a holds for any margins
    random = torch.Generator().manual_seed(1)
    p = 3 * torch.randn(2000, generator=random)
    g = p + 0.1 * torch.rand(2000, generator=random).pow(-1 / tail) * torch.randn(2000, generator=random)
    close = 2 * (g - p).abs() >= p.abs()
    unseen = []
    for seed in range(300):
        sample = audit_sample(2000, 0.1, seed)
        limit, _ = thresholds(p[sample], g[sample])
        left = ~undecided(p, limit)
        left[sample] = False
        unseen.append(float((left & close).sum()))
    mean = torch.tensor(unseen)
    assert float(close.sum()) > 100
    assert float(mean.mean()) <= 9 + 3 * float(mean.std()) / 300**0.5


def test_thresholds_by_hand_and_without_each_image() -> None:
    p = torch.tensor([0.2, 1.0, -3.0, 5.0])
    g = torch.tensor([0.5, 0.3, -3.1, 9.0])
    # near: 0.2 (moved 0.3), 1.0 (0.7 * 1.5 >= 1), 5.0 (4 * 1.5 >= 5); the lowest quarter's error: 1.5 * 0.3
    limit, others = thresholds(p, g, 1.5)
    assert limit == 5.0
    assert others.tolist() == [5.0, 5.0, 5.0, 1.0]
    flipped = torch.tensor([0.5, 0.3, -3.1, -9.0])
    assert missed(p, flipped, others).tolist() == [False, False, False, True]
    assert undecided(torch.tensor([4.0, -6.0, math.inf, math.nan]), limit).tolist() == [
        True,
        False,
        True,
        True,
    ]
    small, _ = thresholds(torch.tensor([0.5, 8.0, 8.0, 8.0]), torch.tensor([0.8, 8.1, 8.1, 8.1]), 1.5)
    assert small == pytest.approx(0.45)  # nothing came near a flip: 1.5 times the error of the least margin
    assert thresholds(p[:1], g[:1])[0] == math.inf


def test_errors_extrapolated_from_the_audit_are_held_against_counting_noise() -> None:
    wrong, flips = torch.tensor([0, 1, 1, 3]), torch.tensor([0, 99, 100, 899])
    assert within_noise(wrong, 100, 1000, flips).tolist() == [True, False, True, False]


def test_the_audit_is_a_random_sample_of_the_asked_size() -> None:
    sample = audit_sample(5000, 0.1, 3)
    assert len(sample.unique()) == 500
    assert not torch.equal(sample, audit_sample(5000, 0.1, 4))
    assert len(audit_sample(400, 0.1, 0)) == 200
    assert audit_sample(30, 0.1, 0).tolist() == list(range(30))
