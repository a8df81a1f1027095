"""ldam, ib, dr, group_dro and loss_proportional against published values, closed forms and NumPy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.losses import (
    DotRegressionLoss,
    GroupDRO,
    InfluenceBalancedLoss,
    LDAMLoss,
    LossProportional,
    ldam_margins,
    make_loss,
)
from lt_lib.nets.heads import CosineHead, ETFHead

COUNTS = [90, 40, 15, 5]
CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS, FEATURES = tensor(10, 4), tensor(10, 6, seed=1)


def test_margins_of_cifar10_lt():
    published = [0.1581, 0.1797, 0.2042, 0.2321, 0.2638, 0.2998, 0.3407, 0.3872, 0.4405, 0.5]
    assert ldam_margins(CIFAR10_LT).tolist() == pytest.approx(published, abs=6e-5)
    assert ldam_margins(CIFAR10_LT, 0.2).max().item() == pytest.approx(0.2, rel=1e-12)


def test_the_margin_is_one_of_the_cosine():
    head = CosineHead(6, 4, scale=12.0).double()
    cosines = F.normalize(FEATURES) @ F.normalize(head.weight).T
    demanded = cosines - 0.3 * ldam_margins(COUNTS, 1.0) * F.one_hot(LABELS, 4)
    expected = F.cross_entropy(12 * demanded, LABELS)
    found = LDAMLoss(COUNTS, 0.3, scale=12.0, dtype=torch.float64)(head(FEATURES), LABELS)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_without_margin_ldam_is_cross_entropy():
    expected = F.cross_entropy(LOGITS, LABELS).item()
    assert LDAMLoss(COUNTS, 0.0)(LOGITS, LABELS).item() == pytest.approx(expected, rel=1e-12)


def test_influence_is_the_gradient_in_the_classifier():
    weight, loss = (
        tensor(4, 6, seed=2).requires_grad_(),
        InfluenceBalancedLoss(COUNTS, 7.0, detach=True).double(),
    )
    terms = loss.per_sample(FEATURES @ weight.T, LABELS, FEATURES)
    relative = 1 / torch.tensor(COUNTS, dtype=torch.float64)
    for term, label in zip(terms, LABELS, strict=True):
        (gradient,) = torch.autograd.grad(term, weight, retain_graph=True)
        # every sample pulls alike, by alpha and its class weight, but for the 1e-3 in the denominator
        wanted = 7 * relative[label] / relative.mean()
        assert gradient.abs().sum().item() == pytest.approx(wanted.item(), rel=2e-3)
    published = InfluenceBalancedLoss(COUNTS, 7.0).double().per_sample(FEATURES @ weight.T, LABELS, FEATURES)
    assert torch.allclose(published, terms, rtol=1e-12)  # the same value, another gradient
    plain = torch.autograd.grad(published.mean(), weight)[0]
    assert not torch.allclose(plain, torch.autograd.grad(terms.mean(), weight)[0], rtol=0.1)


def test_ib_starts_half_way():
    loss = make_loss("ib", COUNTS)
    for epoch, recipe in ((0, "plain"), (99, "plain"), (100, "features"), (199, "features")):
        loss.set_epoch(epoch, 200)
        assert loss.recipe == recipe
    assert loss.loss.alpha == 1000


def test_certainty_costs_nothing_and_pulls_nowhere():
    logits = 200 * F.one_hot(LABELS, 4).double().requires_grad_()
    for detach in (False, True):
        loss = InfluenceBalancedLoss(COUNTS, detach=detach)(logits, LABELS, FEATURES)
        assert loss.item() == 0
        assert torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_dot_regression_on_the_sphere_is_half_a_squared_cosine_defect(scale):
    head = ETFHead(6, 4, scale=scale).double()
    unit = F.normalize(FEATURES)
    cosines = (unit * F.normalize(head.weight)[LABELS]).sum(1)
    found = DotRegressionLoss(4, scale)(head(unit), LABELS, unit)
    assert found.item() == pytest.approx((cosines - 1).square().mean().item() / 2, rel=1e-6)
    collapsed = F.normalize(head.weight)[LABELS]
    assert DotRegressionLoss(4, scale)(head(collapsed), LABELS, collapsed).item() == pytest.approx(
        0, abs=1e-12
    )


@pytest.mark.parametrize("length", [0.5, 4.0])
def test_dot_regression_scales_with_the_length(length):
    head = ETFHead(6, 4).double()
    unit = F.normalize(FEATURES)
    found, one = (DotRegressionLoss(4)(head(h), LABELS, h) for h in (length * unit, unit))
    assert found.item() == pytest.approx(length * one.item(), rel=1e-9)


def test_lengths_of_the_batch_are_a_class_mean():
    head = ETFHead(6, 4).double()
    logits, rows = head(FEATURES).numpy(), head.weight.numpy()
    total, labels, present = 0.0, LABELS.numpy(), 4
    for h, y in zip(FEATURES.numpy(), labels, strict=True):  # the formula, with rows of the batch's lengths
        m = rows[y] * np.sqrt(len(labels) / present / (labels == y).sum())
        total += (h @ m - np.linalg.norm(m) * np.linalg.norm(h)) ** 2 / (2 * np.linalg.norm(h))
    loss = DotRegressionLoss(4, lengths="batch")
    found = loss(torch.from_numpy(logits), LABELS, FEATURES).item()
    assert found == pytest.approx(total / len(labels), rel=1e-6)
    each = DotRegressionLoss(4).per_sample(torch.from_numpy(logits), LABELS, FEATURES)
    means = [each[c == LABELS].mean().item() for c in range(4)]
    assert found == pytest.approx(sum(means) / 4, rel=1e-9)


def test_dot_regression_pulls_to_the_own_row_alone():
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(DotRegressionLoss(4)(logits, LABELS, FEATURES), logits)
    other = F.one_hot(LABELS, 4) == 0
    assert (gradient[other] == 0).all()
    assert (gradient[~other] < 0).all()  # up: no own logit reaches the length here
    zero = torch.zeros(10, 6, dtype=torch.float64, requires_grad=True)
    for detach in (True, False):
        value = DotRegressionLoss(4, detach=detach)(ETFHead(6, 4).double()(zero), LABELS, zero)
        assert torch.isfinite(torch.autograd.grad(value, zero)[0]).all()


@pytest.mark.parametrize(
    "loss",
    [
        LDAMLoss(COUNTS, scale=3.0, dtype=torch.float64),
        InfluenceBalancedLoss(COUNTS, 2.0, dtype=torch.float64),
        DotRegressionLoss(4, detach=False),
        DotRegressionLoss(4, lengths="batch", detach=False),
    ],
    ids=["ldam", "ib", "dr", "dr-batch"],
)
def test_gradients_are_those_of_finite_differences(loss):
    logits, features = LOGITS.clone().requires_grad_(), FEATURES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z, h: loss(z, LABELS, h), (logits, features))


@pytest.mark.parametrize("name", ["ib", "dr"])
def test_the_detached_part_carries_no_gradient_to_the_features(name):
    features = FEATURES.clone().requires_grad_()
    hyper = {"start_epoch": 0} if name == "ib" else {}
    for detach in (True, False):
        value = make_loss(name, COUNTS, detach=detach, **hyper)(LOGITS, LABELS, features)
        assert value.requires_grad == (not detach)


def dro_by_numpy(batches, step, adjustment=0.0):
    """Return the values and the last q of Algorithm 1 with all groups of a batch at once."""
    q, values = np.full(4, 0.25), []
    for logits, labels in batches:
        z = logits.numpy()
        terms = np.log(np.exp(z).sum(1)) - z[range(len(z)), labels]
        means = np.array([terms[labels == c].mean() if (labels == c).any() else 0.0 for c in range(4)])
        q = q * np.exp(step * (means + adjustment / np.sqrt(COUNTS)))
        q /= q.sum()
        values.append(q @ means)
    return values, q


@pytest.mark.parametrize("adjustment", [0.0, 2.0])
def test_group_dro_climbs_as_its_algorithm(adjustment):
    batches = [
        (tensor(10, 4, seed=s), LABELS.numpy() if s % 2 else np.minimum(LABELS.numpy(), 1)) for s in range(6)
    ]
    values, q = dro_by_numpy(batches, 0.3, adjustment)
    loss = GroupDRO(COUNTS, 0.3, adjustment, dtype=torch.float64)
    found = [loss(logits, torch.from_numpy(labels)).item() for logits, labels in batches]
    assert found == pytest.approx(values, rel=1e-12)
    assert loss.q.tolist() == pytest.approx(q.tolist(), rel=1e-12)
    before = loss.log_q.clone()
    loss.eval()(LOGITS, LABELS)
    assert torch.equal(loss.log_q, before)


def test_group_dro_ends_with_the_worst_class_and_never_loses_one():
    logits, loss = LOGITS.clone(), GroupDRO(COUNTS, step=1.0)
    logits[LABELS == 2, 2] -= 8
    for _ in range(60):
        value = loss(logits, LABELS)
    worst = F.cross_entropy(logits[LABELS == 2], LABELS[LABELS == 2])
    assert value.item() == pytest.approx(worst.item(), rel=1e-5)
    assert loss.q.sum().item() == pytest.approx(1, rel=1e-5)
    easy = logits.clone()
    easy[LABELS == 2, 2] += 16
    for _ in range(60):  # back from below exp(-400), which float32 would have kept at 0
        loss(easy - 20 * F.one_hot(LABELS, 4) * (LABELS == 0)[:, None], LABELS)
    assert loss.q.argmax().item() == 0


def test_group_dro_without_step_is_the_class_mean():
    loss, mean = GroupDRO(COUNTS, step=0.0), make_loss("class_mean", COUNTS)
    assert loss(LOGITS, LABELS).item() == pytest.approx(mean(LOGITS, LABELS).item(), rel=1e-6)


@pytest.mark.parametrize("clamp", [None, 1.1])
def test_weights_in_proportion_to_the_loss(clamp):
    terms = F.cross_entropy(LOGITS, LABELS, reduction="none")
    means = torch.stack([terms[c == LABELS].mean() for c in range(4)])
    weights = (means / means.mean()).clamp(max=clamp or math.inf)
    found = LossProportional(4, clamp).per_sample(LOGITS, LABELS)
    assert torch.allclose(found, weights[LABELS] * terms, rtol=1e-12)
    assert (means / means.mean()).max() > 1.1


def test_no_loss_to_be_in_proportion_to():
    certain = 1e4 * F.one_hot(LABELS, 4).double().requires_grad_()
    value = LossProportional(4)(certain, LABELS)
    assert value.item() == 0
    assert torch.isfinite(torch.autograd.grad(value, certain)[0]).all()


def test_equal_losses_leave_plain_cross_entropy():
    flat = torch.zeros(10, 4)
    assert LossProportional(4)(flat, LABELS).item() == pytest.approx(math.log(4), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.sampled_from(["ldam", "ib", "dr", "group_dro", "loss_proportional"]))
def test_the_order_of_classes_does_not_matter(order, name):
    hyper = {"start_epoch": 0} if name == "ib" else {}
    place = torch.argsort(torch.tensor(order))
    one = make_loss(name, COUNTS, **hyper).per_sample(LOGITS, LABELS, FEATURES)
    counts = [COUNTS[c] for c in order]
    two = make_loss(name, counts, **hyper).per_sample(LOGITS[:, order], place[LABELS], FEATURES)
    assert torch.allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("name", ["ib", "dr"])
@pytest.mark.parametrize(
    ("features", "words"),
    [
        (None, "found none"),
        (FEATURES[:9], r"found shape \(9, 6\)"),
        (FEATURES[:, 0], r"found shape \(10,\)"),
        (FEATURES.long(), "of torch.int64"),
        ([1.0], "found list"),
    ],
)
def test_features_that_are_missing_or_do_not_fit(name, features, words):
    loss = make_loss(name, COUNTS, **({"start_epoch": 0} if name == "ib" else {}))
    assert loss.recipe == "features"
    for call in (loss, loss.per_sample):
        with pytest.raises(
            ValueError, match=rf"The loss `{name}` needs `features`.*{words}.*recipe `features`"
        ):
            call(LOGITS, LABELS, features)


@pytest.mark.parametrize("name", ["ldam", "ib", "dr", "group_dro", "loss_proportional"])
def test_counts_that_disagree_with_the_labels(name):
    hyper = {"start_epoch": 0} if name == "ib" else {}
    with pytest.raises(ValueError, match=r"`labels` must be 0..2; found 3"):
        make_loss(name, COUNTS[:3], **hyper)(LOGITS[:, :3], LABELS, FEATURES)
    with pytest.raises(ValueError, match=r"floating-point logits \(B, 3\); found shape \(10, 4\)"):
        make_loss(name, COUNTS[:3], **hyper)(LOGITS, LABELS.clamp(max=2), FEATURES)
