"""GLMC under class weights from elsewhere: inverse reweighting, and the wrappers of losses."""

import pytest
import torch
from mixed_views import COUNTS, gradients, leaves, problem

from lt_lib.losses import class_balanced_weights, make_loss
from lt_lib.losses.glmc import GLMCLoss
from lt_lib.losses.views import MixedViews
from lt_lib.reweighting import InverseReweighting


def pairs(logits, labels, views, head):
    """(label, share, cross-entropy) of every image, branch and label."""
    scores = {"plain": views.plain_logits, "rebalanced": (logits, views.local_logits)}[head]
    return [
        (int(label), share, -scores[branch][i].log_softmax(0)[label])
        for branch in (0, 1)
        for owner, share in (
            (labels, views.shares[branch]),
            (views.partner_labels, 1 - views.shares[branch]),
        )
        for i, label in enumerate(owner)
    ]


def weighted(entries, weights):
    return sum(share * weights[label] * value for label, share, value in entries)


@pytest.mark.parametrize("head", ["rebalanced", "both"])
@pytest.mark.parametrize("reduction", ["sample", "class"])
@pytest.mark.parametrize("through", [True, False])
def test_inverse_reweighting_sees_each_label_with_its_share(head, reduction, through):
    logits, labels, views = problem()
    loss = GLMCLoss(COUNTS, consistency=0.0, inverse_head=head).double()
    loss.set_epoch(1, 2)  # a_t = 3/4
    options = {"alpha": 0.3, "through_weights": through, "reduction": reduction}
    value = loss.reweighted_forward(logits, labels, views, InverseReweighting(COUNTS, **options).double())
    entries = pairs(logits, labels, views, "rebalanced")
    mass = {c: sum(s for label, s, _ in entries if label == c) for c in {e[0] for e in entries}}
    means = {c: sum(s * v for label, s, v in entries if label == c) / mass[c] for c in mass}
    mean = sum(means.values()) / len(means)
    weights = {c: (mean * means[c] + 0.3) / (means[c] ** 2 + 0.3) for c in means}
    weights = weights if through else {c: w.detach() for c, w in weights.items()}
    if reduction == "class":  # each class present once, whatever its mass; two branches
        weights = {c: w * 2 * len(labels) / (mass[c] * len(mass)) for c, w in weights.items()}
    plain = pairs(logits, labels, views, "plain")
    first = weighted(plain, weights if head == "both" else dict.fromkeys(range(4), 1.0))
    expected = (0.75 * first + 0.25 * weighted(entries, weights)) / len(labels)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    tensors = leaves(logits, views)
    for one, two in zip(gradients(value, tensors), gradients(expected, tensors), strict=True):
        assert torch.allclose(one, two, rtol=1e-8, atol=1e-12)


def test_inverse_reweighting_is_the_plain_loss_before_it_starts():
    logits, labels, views = problem()
    loss, reweighting = GLMCLoss(COUNTS).double(), InverseReweighting(COUNTS, start_epoch=2).double()
    loss.set_epoch(1, 3)
    reweighting.set_epoch(1, 3)
    value = loss.reweighted_forward(logits, labels, views, reweighting)
    assert value.item() == loss(logits, labels, views).item()
    assert not reweighting.batch_counts.any()
    reweighting.set_epoch(2, 3)
    loss.reweighted_forward(logits, labels, views, reweighting)
    present = torch.cat((labels, views.partner_labels)).unique()
    assert reweighting.batch_counts.nonzero().flatten().tolist() == present.tolist()
    assert int(reweighting.batch_counts.max()) == 1  # both branches are one batch


def test_inverse_reweighting_may_look_at_what_comes_before_its_start():
    logits, labels, views = problem()
    loss = GLMCLoss(COUNTS).double()
    reweighting = InverseReweighting(COUNTS, start_epoch=1, count_before_start=True).double()
    for module in (loss, reweighting):
        module.set_epoch(0, 3)
    value = loss.reweighted_forward(logits, labels, views, reweighting)
    assert value.item() == loss(logits, labels, views).item()
    assert int(reweighting.batch_counts.max()) == 1


@pytest.mark.parametrize("shares", [(1.0, 1.0), (0.0, 0.0), (1.0, 0.0)])
@pytest.mark.parametrize("reduction", ["sample", "class"])
def test_a_label_without_a_share_leaves_everything_finite(shares, reduction):
    labels = torch.zeros(6, dtype=torch.int64)
    logits, labels, views = problem(6, shares=shares, labels=labels)
    views = MixedViews(torch.full((6,), 3), *[getattr(views, n) for n in list(vars(views))[1:]])
    loss, reweighting = GLMCLoss(COUNTS).double(), InverseReweighting(COUNTS, reduction=reduction).double()
    loss.set_epoch(1, 2)
    for value in (
        loss(logits, labels, views),
        loss.reweighted_forward(logits, labels, views, reweighting),
    ):
        assert torch.isfinite(value)
        assert all(torch.isfinite(g).all() for g in gradients(value, leaves(logits, views)))


def test_wrappers_ask_for_the_same_views():
    logits, labels, views = problem(dtype=torch.float32)
    late = make_loss("glmc", COUNTS, defer_epoch=1, partner="inverse")
    weighted = make_loss("glmc", COUNTS, drw_epoch=1)
    over = make_loss("glmc", COUNTS, inverse={"alpha": 0.3})
    plain = make_loss("glmc", COUNTS)
    for loss in (late, weighted, over, plain):
        assert loss.extras == "glmc"
        loss.set_epoch(0, 2)
    assert (late.recipe, weighted.recipe, over.recipe) == ("plain", "glmc", "glmc")
    assert weighted(logits, labels, views).item() == plain(logits, labels, views).item()
    for loss in (late, weighted, over, plain):
        loss.set_epoch(1, 2)
        assert loss.plain_epochs(2) == 0
    assert late.recipe == "glmc_inverse"
    assert late(logits, labels, views).item() == plain(logits, labels, views).item()
    drw = plain.weighted_forward(logits, labels, views, class_balanced_weights(COUNTS).float())
    assert weighted(logits, labels, views).item() == pytest.approx(drw.item(), rel=1e-6)
    inverse = plain.reweighted_forward(logits, labels, views, InverseReweighting(COUNTS, alpha=0.3))
    assert over(logits, labels, views).item() == pytest.approx(inverse.item(), rel=1e-6)
