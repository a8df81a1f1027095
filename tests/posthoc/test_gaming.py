import cvxpy
import numpy as np
import pytest
import torch
from two_gaussians import ARGMAX

from lt_lib.metrics import accuracy
from lt_lib.posthoc.gaming import dilute, diluted_accuracy, level

N, RECALLS = 4000, (0.9, 0.6, 0.3)


def predictions():
    """Images of three classes, N each, with these recalls; errors go to the next class."""
    labels = torch.arange(3).repeat_interleave(N)
    right = torch.cat([torch.arange(N) < round(a * N) for a in RECALLS])
    return torch.where(right, labels, (labels + 1) % 3), labels


@pytest.mark.parametrize("share", [0, 0.4, 1])
def test_dilution_moves_on_a_line_to_the_random_guesser(share):
    guess, labels = predictions()
    found = accuracy(dilute(guess, share, 3), labels, 3)
    wanted = diluted_accuracy(RECALLS, share)
    assert torch.allclose(found.per_class, wanted, atol=0.03)  # 4 binomial standard errors
    assert float(wanted.std(correction=0)) == pytest.approx((1 - share) * np.std(RECALLS), abs=1e-12)
    assert found.balanced == pytest.approx((1 - share) * 0.6 + share / 3, abs=0.02)
    assert share != 0 or torch.equal(dilute(guess, share, 3), guess)


def test_a_random_guesser_has_no_sigma_and_knows_nothing():
    assert diluted_accuracy(RECALLS, 1).tolist() == pytest.approx([1 / 3] * 3)


def test_two_classes_by_hand():
    # R = (a, 1 - a; 1 - b, b): of predictions of class 0 keep the share q with a q = b + (1 - b)(1 - q)
    a, b = ARGMAX
    n = 100_000
    labels = torch.tensor([0, 1]).repeat_interleave(n)
    right = torch.cat([torch.arange(n) < round(r * n) for r in (a, b)])
    found = level(torch.where(right, labels, 1 - labels), labels, 2)
    q = 1 / (1 + a - b)
    assert found.relabel.numpy() == pytest.approx(np.array([[q, 1 - q], [0, 1]]), abs=1e-4)
    assert found.recall == pytest.approx(a * q, abs=1e-4)


def test_the_level_rule_is_that_of_another_solver_and_equalises():
    guess, labels = predictions()
    found = level(guess, labels, 3)
    table = np.zeros((3, 3))
    for c, a in enumerate(RECALLS):
        table[c, c], table[c, (c + 1) % 3] = a, 1 - a
    relabel, recall = cvxpy.Variable((3, 3), nonneg=True), cvxpy.Variable()
    rules = [cvxpy.sum(relabel, axis=1) == 1, cvxpy.diag(table @ relabel) == recall]
    cvxpy.Problem(cvxpy.Maximize(recall), rules).solve(solver=cvxpy.CLARABEL)
    assert found.recall == pytest.approx(float(recall.value), abs=1e-6)
    drawn = accuracy(found(guess), labels, 3)
    assert drawn.per_class.tolist() == pytest.approx([found.recall] * 3, abs=0.03)
    assert torch.equal(found(guess, seed=3), found(guess, seed=3))


def test_what_does_not_fit_is_refused():
    guess, labels = predictions()
    with pytest.raises(ValueError, match="equally long"):
        level(guess[1:], labels, 3)
    with pytest.raises(ValueError, match="share"):
        dilute(guess, 1.5, 3)
    with pytest.raises(ValueError, match="must be 0"):
        level(guess, labels, 3)(torch.tensor([3]))
