"""The fingerprint of functions and modules that are not of this library."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lt_lib.losses import fingerprint

N = torch.tensor([14, 9, 4, 3], dtype=torch.float64)
B, PRESENT = int(N.sum()), 4  # the last of five classes has no sample
LABELS = torch.repeat_interleave(torch.arange(4), N.long())


def batch():
    return 2 * torch.randn(B, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def assert_close(found, expected, rel=1e-12):
    wanted = torch.as_tensor(expected).tolist()
    assert found[:PRESENT].tolist() == pytest.approx(wanted, rel=rel, abs=1e-14)


def test_a_function_of_two_is_not_given_features():
    with pytest.raises(
        ValueError, match=r"as `loss\(logits, labels, features\)`: too many .* Leave `features`"
    ):
        fingerprint(lambda z, y: F.cross_entropy(z, y), batch(), LABELS, torch.ones(B, 3))


WEIGHT = torch.tensor([0.5, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("loss", "rel"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHT), 1e-12),
        (lambda z, y: F.cross_entropy(z, y, weight=WEIGHT), 1e-5),  # in float32, as its constant
    ],
)
def test_constants_of_float32_are_no_obstacle(loss, rel):
    weights = WEIGHT[:PRESENT].double()
    for logits in (batch(), batch().float()):
        found = fingerprint(loss, logits, LABELS)
        assert_close(
            found.coefficients,
            N * weights / (N * weights).sum(),
            rel=rel if logits.dtype.itemsize > 4 else 1e-5,
        )
        assert_close(found.explained, [1.0] * 4, rel=1e-5)


def test_a_loss_that_writes_into_its_arguments_changes_nothing():
    def writes(z, y):
        z.add_(1)
        value = F.cross_entropy(z, y.clone())
        y.zero_()
        return value

    logits, labels = batch(), LABELS.clone()
    found, wanted = fingerprint(writes, logits, labels), fingerprint(F.cross_entropy, batch(), LABELS)
    assert torch.equal(labels, LABELS)
    assert torch.equal(logits, batch())
    assert_close(found.coefficients, wanted.coefficients[:PRESENT])


def test_global_random_state_stays_and_eval_mode_is_no_chance():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, logits, labels):
            return F.cross_entropy(self.drop(logits), labels)

    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="random or remembers calls"):
        fingerprint(Dropped(), batch(), LABELS)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(fingerprint(Dropped().eval(), batch(), LABELS).coefficients, N / B)
