"""GLMC against its equation in loops, its parts in closed form, and what it refuses."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_views import COUNTS, gradients, leaves, problem

from lt_lib.losses import loss_options, make_loss
from lt_lib.losses.glmc import GLMCLoss
from lt_lib.losses.views import MixedViews
from lt_lib.reweighting import InverseReweighting


def by_loops(logits, labels, views, weights, factor, consistency):
    """The equation, image by image."""
    total = 0.0
    for i in range(len(labels)):
        for branch, rebalanced in enumerate((logits, views.local_logits)):
            for label, share in (
                (labels[i], views.shares[branch]),
                (views.partner_labels[i], 1 - views.shares[branch]),
            ):
                plain = -views.plain_logits[branch][i].log_softmax(0)[label]
                other = -rebalanced[i].log_softmax(0)[label]
                total = total + share * (factor * plain + (1 - factor) * weights[label] * other)
        for u, h in ((0, 1), (1, 0)):
            u, h = views.predictions[u][i], views.projections[h][i].detach()
            total = total - consistency * (u @ h) / (u.norm() * h.norm())
    return total / len(labels)


@pytest.mark.parametrize("epoch", [0, 3, 9])
@pytest.mark.parametrize("power", [0.0, 1.2])
def test_agrees_with_the_equation_in_loops(epoch, power):
    logits, labels, views = problem()
    loss = GLMCLoss(COUNTS, power=power, consistency=2.5).double()
    loss.set_epoch(epoch, 10)
    weights = torch.tensor(COUNTS, dtype=torch.float64) ** -power
    expected = by_loops(logits, labels, views, weights / weights.mean(), 1 - (epoch / 10) ** 2, 2.5)
    value = loss(logits, labels, views)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss.per_sample(logits, labels, views).mean().item() == pytest.approx(value.item(), rel=1e-12)
    found, wanted = (gradients(v, leaves(logits, views)) for v in (value, expected))
    for one, two in zip(found, wanted, strict=True):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-8)
    assert not any(g.any() for g in found[4:6])  # projections are targets: their gradient is stopped


def test_weight_moves_from_the_plain_to_the_re_balanced_head():
    logits, labels, views = problem()
    loss = GLMCLoss(COUNTS, consistency=0.0).double()
    loss.set_epoch(0, 200)
    value = loss(logits, labels, views)
    assert not any(g.any() for g in gradients(value, [logits, views.local_logits]))
    factors = []
    for epoch in (0, 100, 199):
        loss.set_epoch(epoch, 200)
        factors.append(loss.cumulative.item())
    assert factors == pytest.approx([1, 0.75, 1 - (199 / 200) ** 2], rel=1e-6)


def test_identical_branches_of_one_image_are_cross_entropy_and_full_consistency():
    logits, labels, _ = problem()
    vectors = torch.randn(12, 5, dtype=torch.float64)
    views = MixedViews(labels, (0.2, 0.9), logits, (logits, logits), (vectors, vectors), (vectors, vectors))
    loss = GLMCLoss([7, 7, 7, 7], consistency=3.0).double()
    loss.set_epoch(1, 2)
    expected = 2 * F.cross_entropy(logits, labels) - 3 * 2
    assert loss(logits, labels, views).item() == pytest.approx(expected.item(), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.permutations(range(4)))
def test_the_order_of_the_classes_does_not_matter(seed, order):
    logits, labels, views = problem(seed=seed)
    order = torch.tensor(order)
    renamed = order.argsort()
    moved = MixedViews(
        renamed[views.partner_labels],
        views.shares,
        views.local_logits[:, order],
        tuple(head[:, order] for head in views.plain_logits),
        views.projections,
        views.predictions,
    )
    values = []
    for counts, batch in (
        (torch.tensor(COUNTS), (logits, labels, views)),
        (torch.tensor(COUNTS)[order], (logits[:, order], renamed[labels], moved)),
    ):
        loss = GLMCLoss(counts).double()
        loss.set_epoch(1, 2)
        values.append(loss(*batch).item())
        values.append(loss.reweighted_forward(*batch, InverseReweighting(counts).double()).item())
    assert values[0] == pytest.approx(values[2], rel=1e-9)
    assert values[1] == pytest.approx(values[3], rel=1e-9)


def test_given_class_weights_stand_in_the_place_of_the_label_weights():
    logits, labels, views = problem()
    loss = GLMCLoss(COUNTS).double()
    loss.set_epoch(1, 2)
    same = loss.weighted_forward(logits, labels, views, loss.class_weights)
    assert same.item() == loss(logits, labels, views).item()
    other = torch.tensor([1.0, 0.5, 2.0, 4.0], dtype=torch.float64)
    value = loss.weighted_forward(logits, labels, views, other)
    assert value.item() == pytest.approx(by_loops(logits, labels, views, other, 0.75, 10.0).item(), rel=1e-9)


def test_every_option_goes_by_name():
    logits, labels, views = problem(dtype=torch.float32)
    options = {
        "power": 0.5,
        "consistency": 2.0,
        "beta": 1.0,
        "partner": "balanced",
        "inverse_head": "both",
    }
    loss = make_loss("glmc", COUNTS, **options)
    assert set(options) <= set(loss_options("glmc"))
    assert {name: getattr(loss, name) for name in list(options)[1:]} == dict(list(options.items())[1:])
    assert loss(logits, labels, views).item() == GLMCLoss(COUNTS, **options)(logits, labels, views).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype):
    logits, labels, views = problem(dtype=dtype)
    wide = problem()[2]
    exact = {
        name: tuple(t.detach().double() for t in value) if isinstance(value, tuple) else value.detach()
        for name, value in vars(views).items()
        if name not in ("partner_labels", "shares", "local_logits")
    }
    wide = MixedViews(views.partner_labels, views.shares, views.local_logits.double(), **exact)
    value = GLMCLoss(COUNTS)(logits, labels, views)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(
        GLMCLoss(COUNTS).double()(logits.double(), labels, wide).item(), rel=1e-5
    )


def test_the_state_dict_holds_the_epoch():
    logits, labels, views = problem()
    loss, twin = (GLMCLoss(COUNTS).double() for _ in range(2))
    loss.set_epoch(3, 4)
    twin.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert twin(logits, labels, views).item() == loss(logits, labels, views).item()


def test_an_image_alone_is_a_batch():
    logits, labels, views = problem(1)
    assert torch.isfinite(GLMCLoss(COUNTS).double()(logits, labels, views))


@pytest.mark.parametrize("partner", ["inverse", "balanced", "instance", "square_root"])
def test_the_recipe_follows_from_the_partners(partner):
    loss = GLMCLoss(COUNTS, partner=partner)
    assert loss.recipe == ("glmc" if partner == "instance" else f"glmc_{partner}")
    assert loss.extras == "glmc"
    assert loss.plain_epochs(10) == 0


def test_missing_or_wrong_views_are_named():
    logits, labels, views = problem()
    loss = GLMCLoss(COUNTS)
    for features, words in ((None, "found none"), (torch.zeros(12, 2), "found Tensor")):
        with pytest.raises(ValueError, match=f"loss `glmc` needs `features` of type MixedViews.*{words}"):
            loss(logits, labels, features)
        with pytest.raises(ValueError, match="whose recipe `glmc` makes them"):
            loss.reweighted_forward(logits, labels, features, InverseReweighting(COUNTS))
    fields = dict(vars(views))
    with pytest.raises(ValueError, match=r"`local_logits` of the views must have shape \(12, 4\).*\(12, 3\)"):
        loss(logits, labels, MixedViews(**{**fields, "local_logits": torch.zeros(12, 3)}))
    with pytest.raises(ValueError, match=r"`plain_logits`.*found \(3, 4\)"):
        loss(logits, labels, MixedViews(**{**fields, "plain_logits": (torch.zeros(3, 4),) * 2}))
    with pytest.raises(ValueError, match=r"`labels` must be 0..3; found 4"):
        loss(logits, labels, MixedViews(**{**fields, "partner_labels": torch.full((12,), 4)}))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"plain_logits": (torch.zeros(12, 4),)}, "`plain_logits` .* two tensors, one a branch; found 1"),
        ({"plain_logits": torch.zeros(2, 12, 4)}, "`plain_logits` .* found a Tensor"),
        ({"projections": (torch.zeros(12, 7), torch.zeros(12, 5))}, r"`projections` .* \(12, 7\).*\(12, 5\)"),
        ({"predictions": (torch.zeros(12, 5),) * 2}, r"`predictions` .* \(12, 7\).*\(12, 5\)"),
        ({"predictions": (torch.zeros(1, 7),) * 2}, r"`predictions` .* found \(1, 7\)"),
        ({"local_logits": [[0.0] * 4] * 12}, "`local_logits` .* floating-point tensor; found a list"),
        ({"shares": (0.3, 1.2)}, r"`shares` .* in 0..1, .*; found \(0.3, 1.2\)"),
        ({"shares": (0.3, math.nan)}, "`shares`"),
        ({"shares": 0.3}, "`shares` .* found 0.3"),
    ],
)
def test_views_of_another_shape_are_named(wrong, words):
    logits, labels, views = problem()
    with pytest.raises(ValueError, match=words):
        GLMCLoss(COUNTS)(logits, labels, MixedViews(**{**vars(views), **wrong}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"power": -1}, "`power`.*at least 0"),
        ({"consistency": math.inf}, "`consistency`"),
        ({"beta": 0}, "`beta`.*above 0"),
        ({"partner": "uniform"}, "`partner` must be one of balanced, instance, inverse, square_root"),
        ({"inverse_head": "plain"}, "`inverse_head` must be one of both, rebalanced"),
    ],
)
def test_constants_out_of_range_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        GLMCLoss(COUNTS, **options)


def test_a_class_without_images_is_named():
    with pytest.raises(ValueError, match="Class 1 has 0 images"):
        GLMCLoss([5, 0, 3])
