"""Balanced contrastive learning against loops over pairs, closed forms and identities."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.collapse import simplex_etf
from lt_lib.losses import class_balanced_weights, loss_options, make_loss
from lt_lib.losses.bcl import BCLLoss, balanced_contrastive
from lt_lib.losses.views import ContrastiveViews
from lt_lib.reweighting import InverseReweighting

COUNTS = [90, 40, 15, 5]


def vectors(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def problem(size=9, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + 1)
    labels = torch.multinomial(torch.tensor([6.0, 3, 2, 1]), size, True, generator=generator)
    views = ContrastiveViews(
        (vectors(size, 5, seed=seed + 2, dtype=dtype), vectors(size, 5, seed=seed + 3, dtype=dtype)),
        vectors(4, 5, seed=seed + 4, dtype=dtype),
    )
    return vectors(size, 4, seed=seed + 5, dtype=dtype), labels, views


def by_loops(embeddings, labels, prototypes, temperature, anchor_in_sum):
    """The equation, pair by pair."""
    z = [row / row.norm() for row in embeddings]
    centres = [row / row.norm() for row in prototypes]
    terms = []
    for i, anchor in enumerate(z):
        denominator = 0.0
        for c, centre in enumerate(centres):
            members = [z[k] for k in range(len(z)) if labels[k] == c]
            if c == labels[i] and not anchor_in_sum:
                members = [z[k] for k in range(len(z)) if labels[k] == c and k != i]
            keys = [*members, centre]
            denominator = denominator + sum((anchor @ key / temperature).exp() for key in keys) / len(keys)
        positives = [z[k] for k in range(len(z)) if labels[k] == labels[i] and k != i]
        positives.append(centres[labels[i]])
        logs = [((anchor @ p / temperature).exp() / denominator).log() for p in positives]
        terms.append(-sum(logs) / len(positives))
    return torch.stack(terms)


@pytest.mark.parametrize("anchor_in_sum", [False, True])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_agrees_with_the_equation_pair_by_pair(anchor_in_sum, temperature):
    embeddings, prototypes = vectors(14, 6), vectors(4, 6, seed=1)
    labels = torch.tensor([0] * 7 + [1] * 4 + [2] * 2 + [3])  # class 3 is alone
    found = balanced_contrastive(embeddings, labels, prototypes, temperature, anchor_in_sum)
    wanted = by_loops(embeddings, labels, prototypes, temperature, anchor_in_sum)
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    for one, two in zip(
        torch.autograd.grad(found.sum(), (embeddings, prototypes)),
        torch.autograd.grad(wanted.sum(), (embeddings, prototypes)),
        strict=True,
    ):
        assert torch.allclose(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_two_orthonormal_classes_in_closed_form(temperature):
    frame = torch.eye(2, dtype=torch.float64)
    labels = torch.tensor([0] * 9 + [1])  # however imbalanced
    terms = balanced_contrastive(5 * frame[labels], labels, 0.2 * frame, temperature)
    assert torch.allclose(terms, torch.full_like(terms, math.log1p(math.exp(-1 / temperature))), rtol=1e-12)


def test_a_simplex_in_closed_form_whatever_the_counts():
    frame, temperature = simplex_etf(4, 6).double(), 0.3
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([20, 7, 2, 1]))
    terms = balanced_contrastive(frame[labels], labels, frame, temperature)
    expected = math.log1p(3 * math.exp(-(4 / 3) / temperature))
    assert terms.tolist() == pytest.approx([expected] * 30, rel=1e-9)


def test_a_simplex_is_stationary_for_the_class_mean_of_the_terms():
    frame = simplex_etf(4, 6).double()
    counts = torch.tensor([20, 7, 2, 1]).double()
    labels = torch.repeat_interleave(torch.arange(4), counts.long())
    embeddings, prototypes = (t.clone().requires_grad_() for t in (frame[labels], frame))
    terms = balanced_contrastive(embeddings, labels, prototypes, 0.3)
    for weights, stationary in ((1 / (4 * counts[labels]), True), (torch.ones(30) / 30, False)):
        gradients = torch.autograd.grad(
            (weights.double() * terms).sum(), (embeddings, prototypes), retain_graph=True
        )
        assert all(g.abs().max() < 1e-12 for g in gradients) == stationary


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.permutations(range(4)))
def test_the_order_of_the_classes_does_not_matter(seed, order):
    embeddings, prototypes = vectors(10, 5, seed=seed), vectors(4, 5, seed=seed + 1)
    labels = torch.randint(4, (10,), generator=torch.Generator().manual_seed(seed))
    order = torch.tensor(order)
    one = balanced_contrastive(embeddings, labels, prototypes, 0.1)
    two = balanced_contrastive(embeddings, order.argsort()[labels], prototypes[order], 0.1)
    assert torch.allclose(one, two, rtol=1e-9)


def test_an_anchor_alone_in_its_class_has_a_finite_gradient():
    embeddings, prototypes = vectors(3, 5), vectors(4, 5, seed=1)
    terms = balanced_contrastive(embeddings, torch.tensor([0, 0, 3]), prototypes, 0.07)
    for gradient in torch.autograd.grad(terms.sum(), (embeddings, prototypes)):
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0


def expected(logits, labels, views, temperature=0.07, first=1.0, second=0.35):
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    terms = by_loops(torch.cat(views.embeddings), labels.repeat(2), views.prototypes, temperature, False)
    compensated = F.cross_entropy(logits + (counts / counts.sum()).log(), labels, reduction="none")
    return first * compensated, second * terms.view(2, -1).mean(0)


def test_the_loss_is_compensated_cross_entropy_and_contrast():
    logits, labels, views = problem()
    for options in ({}, {"temperature": 0.2, "classification": 2.0, "contrast": 0.6}):
        loss = BCLLoss(COUNTS, **options).double()
        terms = sum(expected(logits, labels, views, *options.values()))
        assert torch.allclose(loss.per_sample(logits, labels, views), terms, rtol=1e-6)
        assert loss(logits, labels, views).item() == pytest.approx(terms.mean().item(), rel=1e-6)


def test_weights_act_on_the_classification_term():
    logits, labels, views = problem()
    loss = BCLLoss(COUNTS).double()
    first, second = expected(logits, labels, views)
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    value = loss.weighted_forward(logits, labels, views, weights)
    assert value.item() == pytest.approx(((weights[labels] * first) + second).mean().item(), rel=1e-6)
    inverse = loss.reweighted_forward(logits, labels, views, InverseReweighting(COUNTS).double())
    means = torch.stack([first[labels == c].mean() for c in labels.unique()])  # Theorem T2: the class mean
    assert inverse.item() == pytest.approx((means.mean() + second.mean()).item(), rel=1e-6)


def test_every_option_goes_by_name():
    logits, labels, views = problem(dtype=torch.float32)
    options = {"temperature": 0.2, "classification": 2.0, "contrast": 0.6, "anchor_in_sum": True}
    assert set(options) <= set(loss_options("bcl"))
    named, itself = make_loss("bcl", COUNTS, **options), BCLLoss(COUNTS, **options)
    assert named(logits, labels, views).item() == itself(logits, labels, views).item()


def test_wrappers_ask_for_the_same_views():
    logits, labels, views = problem(dtype=torch.float32)
    over, plain = make_loss("bcl", COUNTS, inverse={"alpha": 0.3}), make_loss("bcl", COUNTS)
    assert (over.recipe, over.extras) == ("bcl", "bcl")
    inverse = plain.reweighted_forward(logits, labels, views, InverseReweighting(COUNTS, alpha=0.3))
    assert over(logits, labels, views).item() == pytest.approx(inverse.item(), rel=1e-6)
    weighted = make_loss("bcl", COUNTS, drw_epoch=0)
    drw = plain.weighted_forward(logits, labels, views, class_balanced_weights(COUNTS).float())
    assert weighted(logits, labels, views).item() == pytest.approx(drw.item(), rel=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_low_precision_is_computed_in_float32(autocast):
    logits, labels, views = problem(dtype=torch.bfloat16)
    exact = ContrastiveViews(
        tuple(rows.detach().double() for rows in views.embeddings), views.prototypes.detach().double()
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = BCLLoss(COUNTS)(logits, labels, views)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(
        BCLLoss(COUNTS).double()(logits.double(), labels, exact).item(), rel=1e-5
    )


def test_an_image_alone_is_a_batch():
    logits, labels, views = problem(1)
    value = BCLLoss(COUNTS).double()(logits, labels, views)
    assert torch.isfinite(value)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(value, [logits, *views.embeddings]))


def test_what_the_loss_asks_for():
    loss = BCLLoss(COUNTS)
    assert (loss.recipe, loss.extras, loss.plain_epochs(5)) == ("bcl", "bcl", 0)


def test_missing_or_wrong_views_are_named():
    logits, labels, views = problem()
    loss = BCLLoss(COUNTS)
    with pytest.raises(ValueError, match=r"`bcl` needs `features` of type ContrastiveViews.*found none"):
        loss(logits, labels)
    with pytest.raises(ValueError, match="whose recipe `bcl` makes them"):
        loss.reweighted_forward(logits, labels, None, InverseReweighting(COUNTS))
    one, two = views.embeddings
    for wrong, words in (
        (ContrastiveViews((one[:3], two), views.prototypes), r"`embeddings`.*\(9, p\).*found \(3, 5\)"),
        (ContrastiveViews((one, two[:, :4]), views.prototypes), r"`embeddings`.*\(9, 5\).*found \(9, 4\)"),
        (ContrastiveViews((one,), views.prototypes), "`embeddings` .* two tensors, one a branch; found 1"),
        (ContrastiveViews((one, None), views.prototypes), "`embeddings` .* found a NoneType"),
        (ContrastiveViews((one, two), views.prototypes[:3]), r"`prototypes`.*\(4, 5\).*found \(3, 5\)"),
    ):
        with pytest.raises(ValueError, match=words):
            loss(logits, labels, wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0}, "`temperature`.*above 0"),
        ({"classification": -1}, "`classification`.*at least 0"),
        ({"contrast": "much"}, "`contrast`.*'much'"),
        ({"anchor_in_sum": 1}, "`anchor_in_sum` must be true or false"),
    ],
)
def test_constants_out_of_range_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        BCLLoss(COUNTS, **options)


def test_a_class_without_images_is_named():
    with pytest.raises(ValueError, match="Class 1 has 0 images"):
        BCLLoss([5, 0, 3])
