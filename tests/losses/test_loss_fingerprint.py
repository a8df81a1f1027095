"""The fingerprint against closed forms: reweighted cross-entropy, Theorem T2, shifted softmax."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lt_lib.losses import LOSS_NAMES, InverseLoss, fingerprint, make_loss
from lt_lib.losses._base import ClassLoss
from lt_lib.reweighting import InverseReweighting, macro_weights

COUNTS = [90, 40, 15, 5, 5]
PRESENT = 4  # the last class has no sample in the batch
N = torch.tensor([14, 9, 4, 3], dtype=torch.float64)
B = int(N.sum())
LABELS = torch.repeat_interleave(torch.arange(4), N.long())


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(B, 5, generator=generator, dtype=torch.float64)


def class_losses(logits):
    return torch.stack([F.cross_entropy(logits[c == LABELS], LABELS[c == LABELS]) for c in range(PRESENT)])


def measure(name, logits, **hyper):
    return fingerprint(make_loss(name, COUNTS, **hyper), logits, LABELS)


def assert_close(found, expected, rel=1e-12):
    wanted = expected.tolist() if isinstance(expected, torch.Tensor) else expected
    assert found[:PRESENT].tolist() == pytest.approx(wanted, rel=rel, abs=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.integers(0, 100))
def test_a_sum_of_class_losses_gives_back_its_coefficients(weights, seed):
    wanted = torch.tensor(weights, dtype=torch.float64)
    found = fingerprint(lambda z, _: wanted @ class_losses(z), batch(seed), LABELS)
    assert_close(found.coefficients, wanted, rel=1e-10)
    assert found.absent == (4,)
    assert found.coefficients[4].isnan()
    assert found.residual_mean[:PRESENT].abs().max() < 1e-13


@settings(max_examples=25, deadline=None)
@given(st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 100))
def test_linear_in_the_loss(a, b, seed):
    first, second, logits = make_loss("logit_adjustment", COUNTS), make_loss("focal", COUNTS), batch(seed)
    both = fingerprint(lambda z, y: a * first(z, y) + b * second(z, y), logits, LABELS)
    parts = [fingerprint(loss, logits, LABELS).coefficients for loss in (first, second)]
    assert_close(both.coefficients, (a * parts[0] + b * parts[1])[:PRESENT], rel=1e-9)


@pytest.mark.parametrize("name", ["ce", "class_mean", "inverse_frequency", "class_balanced"])
def test_reweighted_cross_entropy_is_explained_in_full(name):
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    weights = {
        "ce": torch.ones(5),
        "inverse_frequency": 1 / counts / (1 / counts).mean(),
        "class_balanced": 5 / (1 - 0.9999**counts) / (1 / (1 - 0.9999**counts)).sum(),
    }
    expected = torch.full((4,), 0.25) if name == "class_mean" else N * weights[name][:PRESENT] / B
    found = fingerprint(make_loss(name, COUNTS), batch(), LABELS)
    assert_close(found.coefficients, expected, rel=1e-6)  # weights of float32
    assert_close(found.explained, [1.0] * 4)
    assert found.total_explained == pytest.approx(1, abs=1e-12)
    assert found.relative.nanmean().item() == pytest.approx(1, rel=1e-12)
    assert_close(found.relative, expected / expected.mean(), rel=1e-6)
    assert found.value == pytest.approx(float(expected.double() @ class_losses(batch())), rel=1e-6)


def inverse(logits, batches=(5, 5, 3, 1, 1), **options):
    """Fingerprint of inverse reweighting with alpha 0 after `batches` of each class, and its beta."""
    loss = InverseLoss(InverseReweighting(COUNTS, dtype=torch.float64, **options))
    loss.reweighting.batch_counts.copy_(torch.tensor(batches))
    loss.set_epoch(1, 4)
    return fingerprint(loss, logits, LABELS), macro_weights(batches)[:PRESENT]


def test_released_inverse_reweighting_is_class_mean_cross_entropy():
    found, beta = inverse(batch())  # Theorem T2 (i)
    assert_close(found.coefficients, [float(N @ beta) / B / PRESENT] * 4)
    assert_close(found.explained, [1.0] * 4)


def test_its_sample_mean_reading_is_plain_cross_entropy():
    found, beta = inverse(batch(), mean="sample")
    assert_close(found.coefficients, float(N @ beta) / B * N / B)
    assert_close(found.relative, N / N.mean())


@pytest.mark.parametrize("mean", ["detached", "running"])
def test_a_constant_mean_has_no_gradient(mean):
    found, _ = inverse(batch(), mean=mean)
    assert_close(found.coefficients, [0.0] * 4)
    assert found.explained.isnan().all()
    assert found.relative.isnan().all()
    assert math.isnan(found.total_explained)
    assert found.value > 0


def test_stopped_weights_divide_by_the_class_loss():
    found, beta = inverse(batch(), through_weights=False)  # Theorem T2 (ii)
    losses = class_losses(batch())
    assert_close(found.coefficients, losses.mean() * N * beta / (B * losses))


def test_a_regularised_loss_has_the_derivative_of_its_closed_form():
    losses, alpha = class_losses(batch()), 0.7  # Theorem T2 (iv): class-mean reduction, beta 1, w0 1
    found = measure("inverse", batch(), alpha=alpha, reduction="class")
    direct = alpha * (2 * losses.mean() * losses + alpha - losses**2) / (losses**2 + alpha) ** 2
    through_mean = (losses**2 / (losses**2 + alpha)).mean()
    assert_close(found.coefficients, (direct + through_mean) / PRESENT)


def test_a_clamped_class_keeps_a_constant_weight():
    logits = batch()
    logits[LABELS == 0, 0] += 9  # easy, so that its weight is clamped
    found = measure("inverse", logits, alpha=0.0, clamp=2.0)
    over = class_losses(logits).mean() / class_losses(logits) > 2
    assert over.tolist() == [True, False, False, False]
    assert_close(found.coefficients, (N * ~over).sum() / B / PRESENT + over * 2 * N / B)  # Theorem T2 (vi)


def test_weights_that_follow_the_loss():
    losses = class_losses(batch())
    found = fingerprint(make_loss("loss_proportional", COUNTS), batch(), LABELS)
    assert_close(found.coefficients, N / B * losses / losses.mean())
    q = (0.01 * torch.cat([losses, torch.zeros(1)])).softmax(0)
    found = fingerprint(make_loss("group_dro", COUNTS), batch(), LABELS)
    assert_close(found.coefficients, q[:PRESENT], rel=1e-6)
    assert_close(found.explained, [1.0] * 4)


def test_logit_adjustment_pushes_head_logits_down_for_every_class():
    prior = torch.tensor(COUNTS[:4], dtype=torch.float64) / sum(COUNTS[:4])
    found = fingerprint(make_loss("logit_adjustment", COUNTS[:4]), torch.zeros(B, 4), LABELS)
    assert_close(found.coefficients, N / B * (1 - prior) / (1 - 1 / 4), rel=1e-6)
    expected = N[:, None] / B * (prior - (1 - prior)[:, None] / 3)
    off = ~torch.eye(4, dtype=torch.bool)
    assert torch.allclose(found.residual_mean[off], expected[off], rtol=1e-5, atol=1e-9)
    assert (found.residual_mean[1:, 0] > 0).all()
    assert (found.residual_mean[:3, 3] < 0).all()
    assert found.total_explained < 0.9


def test_unequal_weights_within_a_class_show_as_what_is_left():
    found = fingerprint(make_loss("focal", COUNTS), batch(), LABELS)
    p = batch().softmax(1)
    own, error = p[range(B), LABELS], p - F.one_hot(LABELS, 5)
    slope = (1 - own) ** 2 - 2 * own * (1 - own) * own.log()  # d focal / d CE
    size = error.square().sum(1)
    for c in range(PRESENT):
        mine = c == LABELS
        mean = (slope * size)[mine].sum() / size[mine].sum()
        assert found.coefficients[c].item() == pytest.approx(float(N[c] / B * mean), rel=1e-6)
        explained = mean**2 * size[mine].sum() / (slope**2 * size)[mine].sum()
        assert found.explained[c].item() == pytest.approx(float(explained), rel=1e-6)
        assert found.explained[c] < 1


def test_the_order_of_classes_does_not_matter():
    order, logits = torch.tensor([3, 0, 4, 1, 2]), batch()
    place = torch.argsort(order)
    for name in ("focal", "ldam", "inverse", "balanced_softmax"):
        counts = [COUNTS[c] for c in order]
        one = fingerprint(make_loss(name, COUNTS), logits, LABELS)
        two = fingerprint(make_loss(name, counts), logits[:, order], place[LABELS])
        assert torch.allclose(two.coefficients, one.coefficients[order], rtol=1e-6, equal_nan=True)
        assert torch.allclose(
            two.residual_mean, one.residual_mean[order][:, order], rtol=1e-5, atol=1e-8, equal_nan=True
        )


@pytest.mark.parametrize("name", ["ib", "dr"])
def test_losses_of_features_are_measured_at_fixed_features(name):
    features = torch.ones(B, 3, requires_grad=True)
    loss = make_loss(name, COUNTS, **({"start_epoch": 0} if name == "ib" else {}))
    found = fingerprint(loss, batch(), LABELS, features)
    assert (found.coefficients[:PRESENT] != 0).all()
    assert features.grad is None
    with pytest.raises(ValueError, match=f"The loss `{name}` needs `features`"):
        fingerprint(loss, batch(), LABELS)


def test_nothing_of_the_callers_changes():
    logits = batch().float().requires_grad_()
    for name in ("inverse", "group_dro"):
        loss = make_loss(name, COUNTS)
        before, bits = copy.deepcopy(loss.state_dict()), logits.detach().clone()
        with torch.no_grad():
            fingerprint(loss, logits, LABELS)
        assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
        assert logits.grad is None
        assert torch.equal(logits.detach(), bits)


class OfViews(ClassLoss):
    recipe, extras = "bcl", "bcl"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (OfViews(5), "found one of the recipe `bcl`"),
        (lambda z, y: z.sum(1), r"must return a real scalar tensor .* found shape \(30,\)"),
        (lambda z, y: 3.0, "found float"),
        (lambda z, y: z.sum().detach(), "found one without gradient"),
        (lambda z, y: (z * math.inf).sum(), "NaN"),
        (lambda z, y: (z[0, 0] - z[0, 0].detach()).sqrt(), "`gradient of the loss` must be finite"),
        (lambda z, y: z.sum() * math.nan, "`loss` is NaN on this batch"),
        (lambda z, y: F.dropout(z, 0.5).square().mean(), "for the same batch, so it is random"),
        (nn.Sequential, "found the class Sequential"),
        ("ce", "found 'ce'"),
        (lambda z, y: z.sum() * 1j, "found one of torch.complex128"),
        (lambda z, y, h: z.sum(), r"cannot be called as `loss\(logits, labels\)`: missing"),
    ],
)
def test_what_has_no_fingerprint(loss, words):
    with pytest.raises(ValueError, match=words):
        fingerprint(loss, batch(), LABELS)


def test_what_is_no_batch():
    loss = make_loss("ce", COUNTS)
    with pytest.raises(ValueError, match=r"`labels` must be 0..4; found 5"):
        fingerprint(loss, batch(), LABELS + 2)
    with pytest.raises(ValueError, match="floating-point logits"):
        fingerprint(loss, batch()[:, 0], LABELS)
    with pytest.raises(ValueError, match="`logits` must be finite"):
        fingerprint(loss, batch() * math.nan, LABELS)
    with pytest.raises(ValueError, match="Class 1 is fitted perfectly"):
        fingerprint(loss, batch() + 1e4 * F.one_hot(LABELS, 5) * (LABELS == 1)[:, None], LABELS)


def test_every_loss_on_logits_has_a_fingerprint():
    features = torch.ones(B, 3)
    for name in LOSS_NAMES:
        loss = make_loss(name, COUNTS)
        if loss.recipe in ("plain", "features") and loss.extras is None:
            found = fingerprint(loss, batch(), LABELS, features)
            assert found.coefficients[:PRESENT].isfinite().all(), name
            assert -1e-12 < found.total_explained <= 1 + 1e-12
