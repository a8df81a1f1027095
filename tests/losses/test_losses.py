"""Each loss against torch's own, published values and identities."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.losses import (
    LOSS_NAMES,
    FocalLoss,
    LogitAdjustedCrossEntropy,
    WeightedCrossEntropy,
    class_balanced_weights,
    inverse_frequency_weights,
    make_loss,
)

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
COUNTS = [90, 40, 15, 5]
FEATURES = torch.randn(24, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
AT_ONCE = {"ib": {"start_epoch": 0}}  # for those that are cross-entropy first by default
NAMES = [
    name
    for name in LOSS_NAMES
    if make_loss(name, COUNTS, **AT_ONCE.get(name, {})).recipe in ("plain", "features")
]
SPLIT_INVARIANT = {
    "ldam",
    "ib",
    "dr",
    "ce",
    "inverse_frequency",
    "class_balanced",
    "focal",
    "balanced_softmax",
    "logit_adjustment",
}


def problem(size=24, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.tensor(COUNTS, dtype=torch.float64), size, True, generator=generator)
    return logits.to(dtype).requires_grad_(), labels


def make(name, **hyper):
    return make_loss(name, COUNTS, **AT_ONCE.get(name, {}) | hyper)


def build(name, **hyper):
    return make(name, **hyper).double()


def one_hot(labels):
    return F.one_hot(labels, 4).double()


def by_torch(name, logits, labels):
    """The same loss through torch.nn.functional.cross_entropy, sums and explicit weights."""
    counts, p = torch.tensor(COUNTS, dtype=torch.float64), logits.softmax(1)
    if name == "ldam":
        margins = counts**-0.25
        return F.cross_entropy(logits - 30 * one_hot(labels) * 0.5 * margins / margins.max(), labels)
    if name == "ib":
        influence = (p - one_hot(labels)).abs().sum(1) * FEATURES.abs().sum(1)
        weights = 1000 / counts / (1 / counts).mean()
        return (weights[labels] / (influence + 1e-3) * -p.log()[range(24), labels]).mean()
    if name == "dr":
        length = FEATURES.norm(dim=1)
        return ((logits[range(24), labels] - length) ** 2 / length).mean() / 2
    if name in ("group_dro", "loss_proportional"):
        each = torch.stack([F.cross_entropy(logits[labels == c], labels[labels == c]) for c in range(4)])
        if name == "group_dro":
            return ((0.01 * each.detach()).softmax(0) * each).sum()
        return (torch.bincount(labels) / 24 * each * (each / each.mean()).detach()).sum()
    if name in ("balanced_softmax", "logit_adjustment"):
        return F.cross_entropy(logits + counts.log(), labels)
    if name == "focal":
        own = p[torch.arange(len(labels)), labels]
        return ((1 - own) ** 2 * -own.log()).mean()
    if name in ("class_mean", "inverse"):  # inverse: at alpha = 0 and beta = 1, whatever the weights
        each = [F.cross_entropy(logits[labels == c], labels[labels == c]) for c in labels.unique()]
        return torch.stack(each).mean()
    weights = {"inverse_frequency": 1 / counts, "class_balanced": (1 - 0.9999) / (1 - 0.9999**counts)}
    weight = weights.get(name, torch.ones(4, dtype=torch.float64))
    return F.cross_entropy(logits, labels, weight / weight.mean(), reduction="sum") / len(labels)


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_a_second_implementation(name):
    logits, labels = problem()
    value, expected = build(name)(logits, labels, FEATURES), by_torch(name, logits, labels)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    found, wanted = (torch.autograd.grad(v, logits)[0] for v in (value, expected))
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_terms_have_the_loss_as_their_mean(name):
    logits, labels = problem()
    loss = build(name).eval()  # a batch of its own each, in train mode
    terms = loss.per_sample(logits, labels, FEATURES)
    assert terms.shape == labels.shape
    assert terms.mean().item() == pytest.approx(loss(logits, labels, FEATURES).item(), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_low_precision_is_computed_in_float32(name):
    # guards D16: device and dtype follow the input, on a CPU too
    logits, labels = problem()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounded = logits.detach().to(dtype)
        features = FEATURES.to(dtype)
        value = make(name)(rounded, labels, features)
        assert value.dtype == torch.float32
        expected = build(name)(rounded.double(), labels, features.double()).item()
        assert value.item() == pytest.approx(expected, rel=4e-6)


def accumulated(loss, logits, labels, sizes):
    """Gradient in the logits when the batch comes in pieces, each weighted by its size."""
    point = logits.detach().clone().requires_grad_()
    pieces = zip(point.split(sizes), labels.split(sizes), FEATURES.split(sizes), strict=True)
    for part, target, features in pieces:
        (loss(part, target, features) * len(target) / len(labels)).backward()
    return point.grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [[12, 12], [17, 7], [1] * 24])
def test_splitting_a_batch(name, sizes):
    # guards D13: no division by the batch's weight sum. What looks at the whole batch cannot be split
    logits, labels = problem()
    whole = torch.autograd.grad(build(name)(logits, labels, FEATURES), logits)[0]
    parts = accumulated(build(name), logits, labels, sizes)
    assert torch.allclose(whole, parts, rtol=1e-10, atol=1e-14) == (name in SPLIT_INVARIANT)


def test_a_weight_counts_at_batch_size_one():
    logits, labels = torch.zeros(1, 4), torch.tensor([3])  # guards D13
    weights = inverse_frequency_weights(COUNTS)
    value = make_loss("inverse_frequency", COUNTS)(logits, labels)
    assert value.item() == pytest.approx(weights[3].item() * math.log(4), rel=1e-6)


def test_class_balanced_weights_of_cifar10_lt():
    # guards D14: the effective number of samples, not inverse frequency
    published = [0.0506, 0.0769, 0.1211, 0.1950, 0.3188, 0.5246, 0.8683, 1.4426, 2.4092, 3.9927]
    weights = class_balanced_weights(CIFAR10_LT)
    assert weights.tolist() == pytest.approx(published, abs=6e-5)
    assert weights.sum().item() == pytest.approx(10, rel=1e-12)
    exact = torch.tensor([sum(0.9**k for k in range(n)) for n in COUNTS], dtype=torch.float64).reciprocal()
    assert torch.allclose(class_balanced_weights(COUNTS, 0.9), exact * 4 / exact.sum(), rtol=1e-12, atol=0)
    assert class_balanced_weights(COUNTS, 0.0).tolist() == [1.0] * 4


def test_inverse_frequency_is_its_own_formula():
    weights = inverse_frequency_weights(COUNTS)
    assert (weights * torch.tensor(COUNTS)).std().item() == pytest.approx(0, abs=1e-12)
    assert weights.mean().item() == pytest.approx(1, rel=1e-12)
    near_one = class_balanced_weights(COUNTS, 1 - 1e-10)
    assert torch.allclose(weights, near_one, rtol=1e-6, atol=0)
    root = inverse_frequency_weights(COUNTS, 0.5)
    assert (root[3] / root[0]).item() == pytest.approx(math.sqrt(18), rel=1e-12)


def test_logit_adjustment_adds_the_prior_while_training():
    # guards P4: at zero logits the loss is -log pi_y; the wrong sign gives 4.615 and 0.115
    terms = LogitAdjustedCrossEntropy([90, 9, 1]).per_sample(torch.zeros(3, 3), torch.tensor([0, 1, 2]))
    assert [terms[0].item(), terms[2].item()] == pytest.approx([0.1054, 4.6052], abs=5e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_balanced_softmax_is_logit_adjustment_at_one(seed):
    logits, labels = problem(seed=seed)
    balanced, adjusted = (
        build(n).per_sample(logits, labels) for n in ("balanced_softmax", "logit_adjustment")
    )
    assert torch.allclose(balanced, adjusted, rtol=1e-5, atol=1e-6)


def test_adjustment_is_the_same_in_eval_mode_and_leaves_the_logits():
    logits, labels = problem()  # guards D15: nothing is adjusted at evaluation behind the caller's back
    before, loss = logits.detach().clone(), build("logit_adjustment", tau=0.5)
    trained = loss(logits, labels).item()
    assert loss.eval()(logits, labels).item() == trained
    assert torch.equal(logits.detach(), before)
    assert build("logit_adjustment", tau=0.0)(logits, labels).item() == pytest.approx(
        build("ce")(logits, labels).item(), rel=1e-12
    )


def test_focal_weight_stands_outside_the_probability():
    logits = torch.tensor([[2.0, 0.0, 0.0]])  # guards P5: the weight inside p gives 0.5906
    loss = FocalLoss(3, gamma=1.0, weights=[4.0, 4.0, 4.0])
    assert loss(logits, torch.tensor([0])).item() == pytest.approx(0.2041, abs=5e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_has_a_finite_gradient_at_certainty(gamma):
    logits = torch.tensor([[200.0, 0.0, 0.0], [0.0, 200.0, 0.0]], requires_grad=True)
    value = FocalLoss(3, gamma)(logits, torch.tensor([0, 0]))
    assert torch.isfinite(torch.autograd.grad(value, logits)[0]).all()
    assert value.item() == pytest.approx(100.0)


def test_focal_without_focus_is_cross_entropy():
    logits, labels = problem()
    assert build("focal", gamma=0.0)(logits, labels).item() == pytest.approx(
        F.cross_entropy(logits, labels).item(), rel=1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_images_is_named_by_every_loss(name):
    with pytest.raises(
        ValueError, match=r"Class 1 has 0 images.*\. Drop the class, or merge it"
    ):  # guards D1, D2
        make_loss(name, [5, 0, 3])


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_stays_finite_when_classes_are_absent_from_the_batch(name):
    logits = torch.zeros(2, 4, requires_grad=True)
    value = make(name)(logits, torch.tensor([3, 3]), FEATURES[:2].float())
    assert torch.isfinite(torch.autograd.grad(value, logits)[0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_labels_outside_are_named_in_any_batch(name):
    loss, logits, features = make(name), torch.zeros(3, 4), torch.ones(3, 2)
    for _ in range(2):
        for wrong in ([0, 4, 1], [0, -1, 1], [0, -100, 1]):  # torch passes over -100 in silence
            with pytest.raises(ValueError, match=r"`labels` must be 0..3"):
                loss(logits, torch.tensor(wrong), features)
        assert torch.isfinite(loss(logits, torch.tensor([0, 1, 2]), features))
    with pytest.raises(ValueError, match=r"found shape \(3, 5\)"):
        loss(torch.zeros(3, 5), torch.tensor([0, 1, 2]), features)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, math.nan]])
def test_weights_that_are_no_weights(weights):
    with pytest.raises(ValueError, match="`weights` must"):
        WeightedCrossEntropy(weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.bool])
def test_every_loss_takes_labels_of_every_whole_dtype(name, dtype):
    logits, labels = problem()[0], torch.arange(24) % 2
    found, expected = (make(name)(logits, y, FEATURES) for y in (labels.to(dtype), labels))
    assert torch.equal(found, expected)
    found, expected = (make(name).per_sample(logits, y, FEATURES) for y in (labels.to(dtype), labels))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_refuses_what_is_no_batch_of_logits(name):
    logits, labels = problem()
    with pytest.raises(ValueError, match=r"floating-point logits \(B, 4\); found shape \(24,\)"):
        make_loss(name, COUNTS)(logits[:, 0], labels)
    with pytest.raises(ValueError, match="A loss takes tensors"):
        make_loss(name, COUNTS)(logits.detach().numpy(), labels)
