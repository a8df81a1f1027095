"""Losses by name: options, deferral, presets, state."""

import copy
import json

import pytest
import torch

from lt_lib.losses import LOSS_NAMES, loss_options, make_loss

COUNTS = [90, 40, 15, 5]
GENERATOR = torch.Generator().manual_seed(0)
LOGITS, LABELS = torch.randn(16, 4, generator=GENERATOR), torch.randint(4, (16,), generator=GENERATOR)
FEATURES = torch.randn(16, 3, generator=GENERATOR)
AT_ONCE = {"ib": {"start_epoch": 0}}
NAMES = [
    name
    for name in LOSS_NAMES
    if make_loss(name, COUNTS, **AT_ONCE.get(name, {})).recipe in ("plain", "features")
]
PLAIN = torch.nn.functional.cross_entropy(LOGITS, LABELS).item()


def test_the_names():
    assert set(LOSS_NAMES) >= {
        *("ce", "class_mean", "inverse_frequency", "class_balanced", "focal", "balanced_softmax"),
        *("logit_adjustment", "inverse", "ldam", "ib", "dr", "group_dro", "loss_proportional"),
    }
    every = ("defer_epoch", "drw_epoch", "drw_beta", "inverse")
    assert loss_options("focal") == (*every, "gamma", "weights")
    assert "inverse" not in loss_options("inverse")
    assert {"preset", "alpha", "through_weights", "start_epoch"} <= set(loss_options("inverse"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ce"])
@pytest.mark.parametrize("start", [8, 0.8])
def test_deferral_is_cross_entropy_before_its_epoch(name, start):
    loss = make_loss(name, COUNTS, defer_epoch=start).eval()
    now = make_loss(name, COUNTS, **AT_ONCE.get(name, {})).eval()
    assert loss(LOGITS, LABELS).item() == pytest.approx(PLAIN, rel=1e-6)  # not told of an epoch yet
    for epoch in range(9):
        loss.set_epoch(epoch, 10)
        expected = PLAIN if epoch < 8 else now(LOGITS, LABELS, FEATURES).item()
        assert loss(LOGITS, LABELS, FEATURES).item() == pytest.approx(expected, rel=1e-6)
        terms = loss.per_sample(LOGITS, LABELS, FEATURES)
        assert terms.mean().item() == pytest.approx(expected, rel=1e-6)
    assert abs(now(LOGITS, LABELS, FEATURES).item() - PLAIN) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_resume_where_they_were(name):
    loss, twin = (make_loss(name, COUNTS, defer_epoch=1) for _ in range(2))
    loss.set_epoch(1, 2)
    loss(LOGITS, LABELS, FEATURES)
    state = copy.deepcopy(loss.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    twin.load_state_dict(state)
    assert twin(LOGITS, LABELS, FEATURES).item() == loss(LOGITS, LABELS, FEATURES).item()


def test_presets_and_overrides_of_the_inverse_loss():
    released = make_loss("inverse", COUNTS, preset="as_released", clamp=None).reweighting.options
    assert (released.eps, released.clamp, released.start_epoch) == (1e-8, None, 0.8)
    written = make_loss("inverse", COUNTS, preset="as_written", alpha=0.3, defer_epoch=4).reweighting.options
    assert (written.alpha, written.through_weights, written.start_epoch) == (0.3, False, 4)


def test_options_may_come_from_json():
    hyper = json.loads('{"prior": [1, 2, 3, 4], "clamp": 10, "start_epoch": 0.5, "through_weights": false}')
    assert make_loss("inverse", COUNTS, **hyper).reweighting.prior.tolist() == pytest.approx(
        [0.4, 0.8, 1.2, 1.6]
    )


def test_features_are_accepted_by_every_loss():
    for name in NAMES:
        assert torch.isfinite(make_loss(name, COUNTS)(LOGITS, LABELS, features=torch.zeros(16, 2)))


@pytest.mark.parametrize(
    ("name", "hyper", "words"),
    [
        ("balanced_softmaks", {}, ["`name`", "logit_adjustment", "Did you mean `balanced_softmax`?"]),
        (
            "class_balanced",
            {"betta": 0.9},
            ["`class_balanced` has no option `betta`", "Did you mean `beta`?"],
        ),
        ("ce", {"gamma": 1.0}, ["`ce` has no option `gamma`", "known: defer_epoch"]),
        ("inverse", {"alfa": 1.0}, ["no option `alfa`", "Did you mean `alpha`?"]),
        ("inverse", {"preset": "as_publised"}, ["`preset`", "as_released, as_written"]),
        ("inverse", {"defer_epoch": 2, "start_epoch": 2}, ["both `defer_epoch` and `start_epoch`"]),
        ("inverse", {"alpha": -1.0}, ["`alpha`", "at least 0"]),
        ("inverse", {"clamp": 0}, ["`clamp`", "above 0"]),
        ("inverse", {"prior": [1.0]}, ["`prior`", "4 classes", "found 1"]),
        ("class_balanced", {"beta": 1.0}, ["`beta` must be in [0, 1)", "inverse_frequency"]),
        ("focal", {"gamma": -1}, ["`gamma`", "at least 0"]),
        ("focal", {"weights": [1.0, 2.0]}, ["`weights`", "4 classes"]),
        ("inverse_frequency", {"power": -1}, ["`power`", "at least 0"]),
        ("logit_adjustment", {"tau": "one"}, ["`tau`", "'one'"]),
        ("ce", {"defer_epoch": -3}, ["`defer_epoch`", "whole epoch"]),
    ],
)
def test_what_is_unknown_or_not_allowed_is_named(name, hyper, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are checked below
        make_loss(name, COUNTS, **hyper)
    assert all(word in str(error.value) for word in words), error.value


def test_a_loss_that_would_never_start_is_refused_when_training_begins():
    loss = make_loss("class_balanced", COUNTS, defer_epoch=160)
    with pytest.raises(ValueError, match="`defer_epoch` is 160, but training has 100 epochs"):
        loss.set_epoch(0, 100)
    with pytest.raises(ValueError, match=r"`epoch` must be 0..9"):
        make_loss("ce", COUNTS).set_epoch(10, 10)


@pytest.mark.parametrize(
    ("name", "hyper"),
    [("ce", {}), ("inverse", {}), ("glmc", {}), ("focal", {"defer_epoch": 1, "inverse": {}})],
)
@pytest.mark.parametrize(
    ("epoch", "epochs", "words"),
    [(1.5, 4, "`epoch` .* found 1.5"), (True, 4, "`epoch`"), (1, 4.0, "`epochs`"), (0, 0, "`epochs`.* 0")],
)
def test_epochs_are_whole_numbers(name, hyper, epoch, epochs, words):
    with pytest.raises(ValueError, match=words):
        make_loss(name, COUNTS, **hyper).set_epoch(epoch, epochs)
