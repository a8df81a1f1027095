"""Late class weights and inverse reweighting on top of any loss, alone and together."""

import copy
import json

import pytest
import torch

from lt_lib.losses import (
    LOSS_NAMES,
    Deferred,
    DeferredReweighting,
    Reweighted,
    class_balanced_weights,
    make_loss,
)
from lt_lib.losses._base import ClassLoss, CrossEntropy
from lt_lib.reweighting import InverseReweighting

COUNTS = [90, 40, 15, 5]
GENERATOR = torch.Generator().manual_seed(0)
LOGITS, LABELS = 2 * torch.randn(16, 4, generator=GENERATOR), torch.arange(16) % 4
FEATURES = torch.randn(16, 3, generator=GENERATOR)
BATCH = (LOGITS, LABELS, FEATURES)
NAMES = [
    name for name in LOSS_NAMES if make_loss(name, COUNTS).recipe in ("plain", "features") and name != "ib"
]
RELEASED = {"preset": "as_released", "start_epoch": 0}


def gradient(loss):
    point = LOGITS.clone().requires_grad_()
    value = loss(point, LABELS, FEATURES)
    return value.detach(), torch.autograd.grad(value, point)[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "inverse"])
def test_late_weights_multiply_every_loss(name):
    loss, plain = make_loss(name, COUNTS, drw_epoch=2).eval(), make_loss(name, COUNTS).eval()
    weights = class_balanced_weights(COUNTS).float()[LABELS]
    for epoch in range(4):
        loss.set_epoch(epoch, 4)
        plain.set_epoch(epoch, 4)
        terms = plain.per_sample(*BATCH)
        expected = plain(*BATCH) if epoch < 2 else (weights * terms).mean()
        assert loss(*BATCH).item() == (pytest.approx(expected.item(), rel=1e-6))
        assert loss.per_sample(*BATCH).mean().item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss.recipe == plain.recipe


def test_ldam_drw_is_the_published_second_stage():
    loss = make_loss("ldam", COUNTS, drw_epoch=0.8)
    loss.set_epoch(160, 200)  # the published code: class-balanced weights from epoch 160 of 200
    margins = torch.tensor(COUNTS) ** -0.25
    shifted = LOGITS.clone()
    shifted[range(16), LABELS] -= 30 * 0.5 * (margins / margins.max())[LABELS]
    weights = class_balanced_weights(COUNTS, 0.9999).float()
    expected = torch.nn.functional.cross_entropy(shifted, LABELS, weights, reduction="sum") / 16
    assert loss(LOGITS, LABELS).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "inverse"])
def test_inverse_reweighting_takes_the_terms_of_every_loss(name):
    loss, within = make_loss(name, COUNTS, inverse={"alpha": 0.2}).eval(), make_loss(name, COUNTS).eval()
    terms = within.per_sample(*BATCH)
    means = torch.stack([terms[c == LABELS].mean() for c in range(4)])
    weights = (means.mean() * means + 0.2) / (means**2 + 0.2)
    assert loss(*BATCH).item() == pytest.approx((weights[LABELS] * terms).mean().item(), rel=1e-5)
    assert loss.per_sample(*BATCH).mean().item() == pytest.approx(loss(*BATCH).item(), rel=1e-6)
    assert loss.recipe == within.recipe


@pytest.mark.parametrize(
    "options", [{}, {"preset": "as_written"}, RELEASED, {"mean": "running", "start_epoch": 1}]
)
def test_on_cross_entropy_it_is_the_inverse_loss_bit_for_bit(options):
    over, itself = make_loss("ce", COUNTS, inverse=options), make_loss("inverse", COUNTS, **options)
    assert over.plain_epochs(4) == itself.plain_epochs(4)
    for epoch in range(4):
        over.set_epoch(epoch, 4)
        itself.set_epoch(epoch, 4)
        for _ in range(2):
            assert all(torch.equal(a, b) for a, b in zip(gradient(over), gradient(itself), strict=True))
    assert torch.equal(over.reweighting.batch_counts, itself.reweighting.batch_counts)


@pytest.mark.parametrize("defer", [{}, {"defer_epoch": 2}])
def test_the_inverse_loss_is_weighted_first_like_any_other(defer):
    options = {"alpha": 0.5, "momentum": 0.5}
    itself = make_loss("inverse", COUNTS, drw_epoch=1, **options, **defer)
    over = make_loss("ce", COUNTS, drw_epoch=1, inverse=options, **defer)
    for epoch in range(4):
        over.set_epoch(epoch, 4)
        itself.set_epoch(epoch, 4)
        assert all(torch.equal(a, b) for a, b in zip(gradient(over), gradient(itself), strict=True))
    terms = class_balanced_weights(COUNTS).float()[LABELS] * CrossEntropy(4).per_sample(LOGITS, LABELS)
    means = torch.stack([terms[c == LABELS].mean() for c in range(4)])
    weights = (means.mean() * means + 0.5) / (means**2 + 0.5)
    assert itself(LOGITS, LABELS).item() == pytest.approx((weights[LABELS] * terms).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    "memory", [{"class_loss": "running"}, {"mean": "epoch"}, {"count_before_start": True}]
)
def test_deferral_that_hides_batches_from_the_reweighting_is_refused(memory):
    options = {"alpha": 0.5, **memory}
    words = "`defer_epoch` hides the batches before epoch 2 .* `start_epoch` inside `inverse`"
    with pytest.raises(ValueError, match=words):
        make_loss("focal", COUNTS, inverse=options, defer_epoch=2)
    with pytest.raises(ValueError, match=words):
        make_loss("inverse", COUNTS, **options, defer_epoch=2, drw_epoch=2, drw_beta=0)
    make_loss("focal", COUNTS, inverse=options, defer_epoch=0)  # hides nothing
    plain = make_loss("inverse", COUNTS, **options, defer_epoch=2)
    wrapped = make_loss("inverse", COUNTS, **options, start_epoch=2, drw_epoch=2, drw_beta=0)
    for epoch in range(4):
        plain.set_epoch(epoch, 4)
        wrapped.set_epoch(epoch, 4)
        pairs = zip(gradient(plain), gradient(wrapped), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    assert torch.equal(plain.reweighting.batch_counts, wrapped.reweighting.batch_counts)


def test_before_its_start_the_loss_within_is_untouched():
    loss = make_loss("ldam", COUNTS, inverse={"preset": "as_released"})
    for epoch in range(4):
        loss.set_epoch(epoch, 5)
        assert torch.equal(loss(LOGITS, LABELS), make_loss("ldam", COUNTS)(LOGITS, LABELS))
    loss.set_epoch(4, 5)
    assert not torch.equal(loss(LOGITS, LABELS), make_loss("ldam", COUNTS)(LOGITS, LABELS))
    assert loss.reweighting.batch_counts.tolist() == [1] * 4


@pytest.mark.parametrize(
    ("name", "hyper", "plain"),
    [
        ("ce", {"drw_epoch": 4}, 4),
        ("ce", {"drw_epoch": 4, "inverse": {"start_epoch": 0.2}}, 2),
        ("ce", {"inverse": {"start_epoch": 3, "mean": "epoch"}}, 0),  # it remembers what it saw before
        ("ce", {"inverse": {"start_epoch": 3, "count_before_start": True}}, 0),
        ("ldam", {"drw_epoch": 4}, 0),
        ("ldam", {"defer_epoch": 6, "drw_epoch": 4, "inverse": {}}, 6),
        ("ib", {}, 5),
        ("ib", {"defer_epoch": 2}, 2),
        ("ib", {"defer_epoch": 2, "drw_epoch": 1}, 2),
        ("ib", {"drw_epoch": 3}, 3),
        ("inverse", {"defer_epoch": 6, "drw_epoch": 4}, 6),
        ("inverse", {"defer_epoch": 6}, 6),
        ("focal", {"defer_epoch": 0.8, "inverse": {"start_epoch": 9}}, 8),
    ],
)
def test_the_plain_epochs_are_those_of_cross_entropy(name, hyper, plain):
    loss, ce = make_loss(name, COUNTS, **hyper), CrossEntropy(4)
    assert loss.plain_epochs(10) == plain
    for epoch in range(plain):
        loss.set_epoch(epoch, 10)
        assert loss.recipe == "plain"
        found = gradient(loss)
        assert all(torch.equal(a, b) for a, b in zip(found, gradient(ce), strict=True))
    fresh = make_loss(name, COUNTS, **hyper)  # one that joins here must not differ from one that saw it all
    for epoch in range(plain, 10):
        loss.set_epoch(epoch, 10)
        fresh.set_epoch(epoch, 10)
        assert all(torch.equal(a, b) for a, b in zip(gradient(loss), gradient(fresh), strict=True))


@pytest.mark.parametrize("name", ["ib", "group_dro", "loss_proportional", "ldam"])
def test_state_resumes_bit_for_bit(name):
    hyper = {"drw_epoch": 1, "inverse": {"start_epoch": 1, "mean": "running"}}
    loss, twin = (make_loss(name, COUNTS, **hyper) for _ in range(2))
    for epoch in range(4):
        loss.set_epoch(epoch, 6)
        loss(*BATCH)
    state = copy.deepcopy(loss.state_dict())
    twin.load_state_dict(state)
    assert twin.recipe == loss.recipe
    for epoch in range(4, 6):
        loss.set_epoch(epoch, 6)
        twin.set_epoch(epoch, 6)
        assert all(torch.equal(a, b) for a, b in zip(gradient(loss), gradient(twin), strict=True))
    after = twin.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in loss.state_dict().items())
    assert any(not torch.equal(value, after[key]) for key, value in state.items())


def test_options_may_come_from_json():
    hyper = json.loads(
        json.dumps({"drw_epoch": 0.5, "drw_beta": 0.99, "inverse": RELEASED, "defer_epoch": 1})
    )
    loss = make_loss("ldam", COUNTS, **hyper)
    assert isinstance(loss, Deferred)
    assert isinstance(loss.loss, Reweighted)
    assert isinstance(loss.loss.loss, DeferredReweighting)
    assert torch.allclose(loss.loss.loss.class_weights.double(), class_balanced_weights(COUNTS, 0.99))


class TwoViews(ClassLoss):
    """Weighs its terms itself, as a loss of several views does."""

    recipe, extras = "bcl", "bcl"

    def weighted_forward(self, logits, labels, views, class_weights):
        return views + class_weights.sum()

    def reweighted_forward(self, logits, labels, views, reweighting):
        return views + reweighting.classes


def test_losses_of_several_views_weigh_their_terms_themselves():
    late, over = (
        DeferredReweighting(TwoViews(4), 0, [1, 2, 3, 4]),
        Reweighted(TwoViews(4), InverseReweighting(COUNTS)),
    )
    assert late(LOGITS, LABELS, 1.0).item() == 11
    assert over(LOGITS, LABELS, 1.0) == 5
    assert (late.recipe, late.extras, over.recipe, over.extras) == ("bcl",) * 4
    assert Deferred(over, 3).plain_epochs(5) == 0
    with pytest.raises(ValueError, match="two labels an image"):
        late.per_sample(LOGITS, LABELS, 1.0)
    with pytest.raises(ValueError, match="DeferredReweighting around a loss of several views cannot"):
        Reweighted(late, InverseReweighting(COUNTS))


@pytest.mark.parametrize("name", ["glmc", "bcl"])
def test_both_weightings_are_there_by_name_for_losses_of_several_views(name):
    for hyper in ({"drw_epoch": 0.5}, {"inverse": RELEASED}, {"defer_epoch": 1, "inverse": {}}):
        loss = make_loss(name, COUNTS, **hyper)
        assert loss.extras == name
        assert loss.plain_epochs(4) == 0
        loss.set_epoch(3, 4)
        assert loss.recipe == make_loss(name, COUNTS).recipe
        with pytest.raises(ValueError, match=f"The loss `{name}` needs `features` of type"):
            loss(LOGITS, LABELS)
    with pytest.raises(ValueError, match="class weights replace each other"):
        make_loss(name, COUNTS, drw_epoch=1, inverse={})


@pytest.mark.parametrize(
    ("name", "hyper", "words"),
    [
        ("ce", {"drw_beta": 0.9}, ["`drw_beta` is 0.9", "no `drw_epoch`"]),
        ("ce", {"drw_epoch": -1}, ["`drw_epoch`", "whole epoch"]),
        ("ce", {"drw_epoch": 2, "drw_beta": 1.0}, ["`beta` must be in [0, 1)"]),
        ("ce", {"inverse": True}, ["`inverse` must be a mapping", "found True"]),
        ("ce", {"inverse": {"alfa": 1}}, ["`inverse` has no entry `alfa`", "Did you mean `alpha`?"]),
        ("ce", {"inverse": {"dtype": torch.float64}}, ["`inverse` has no entry `dtype`"]),
        ("inverse", {"dtype": torch.float64}, ["`inverse` has no option `dtype`"]),
        ("ce", {"inverse": {"preset": "written"}}, ["`preset`", "as_written"]),
        ("inverse", {"inverse": {}}, ["`inverse` has no option `inverse`"]),
        ("ib", {"defer_epoch": 2, "start_epoch": 2}, ["`ib` was given both `defer_epoch` and `start_epoch`"]),
        ("ib", {"start_epoch": 1.5}, ["`start_epoch`", "whole epoch"]),
        ("ib", {"alpha": 0}, ["`alpha`", "above 0"]),
        ("ib", {"detach": 1}, ["`detach` must be true or false"]),
        ("ldam", {"max_margin": -0.5}, ["`max_margin`", "at least 0"]),
        ("ldam", {"scale": 0}, ["`scale`", "above 0"]),
        ("dr", {"lengths": "class"}, ["`lengths`", "batch, unit"]),
        ("dr", {"detach": "no"}, ["`detach` must be true or false"]),
        ("group_dro", {"step": -0.1}, ["`step`", "at least 0"]),
        ("group_dro", {"step": float("inf")}, ["`step`"]),
        ("group_dro", {"step": 1e6}, ["`step`", "at most 1000"]),
        ("group_dro", {"adjustment": float("nan")}, ["`adjustment`"]),
        ("loss_proportional", {"clamp": 0}, ["`clamp`", "above 0"]),
    ],
)
def test_what_is_not_allowed_is_named(name, hyper, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are checked below
        make_loss(name, COUNTS, **hyper)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("hyper", "option"),
    [
        ({"drw_epoch": 160}, "drw_epoch"),
        ({"inverse": {"start_epoch": 160}}, "start_epoch"),
        ({"defer_epoch": 160}, ""),
    ],
)
@pytest.mark.parametrize("name", ["ldam", "ib"])
def test_a_stage_that_would_never_start_is_named(name, hyper, option):
    loss = make_loss(name, COUNTS, **hyper)
    for ask in (lambda: loss.set_epoch(0, 100), lambda: loss.plain_epochs(100)):
        with pytest.raises(ValueError, match=f"`{option}.*` is 160, but training has 100 epochs"):
            ask()


def test_reweighting_is_for_the_same_classes():
    with pytest.raises(ValueError, match="for the 4 classes of `loss`; found 3"):
        Reweighted(CrossEntropy(4), InverseReweighting([1, 2, 3]))
