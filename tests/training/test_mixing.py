import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import NORMALISE, Images, KeepStates, same, small_net, some_images

from lt_lib.losses import make_loss
from lt_lib.losses.glmc import PARTNERS
from lt_lib.losses.views import MixedViews
from lt_lib.nets import build_net
from lt_lib.training import Batch, TrainConfig, train
from lt_lib.training.mixing import beta_of, cutmix, draw_box, draw_share, mixup
from lt_lib.training.recipes import RECIPES
from lt_lib.training.sampling import SAMPLINGS

CONFIG = TrainConfig(epochs=3, batch=8, lr=0.05, augment="shift", device="cpu")
COUNTS = [11, 11, 11]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def a_net(seed=0, extras="glmc"):
    return build_net({"depth": 8, "width": 2, "extras": extras}, 3, 1, seed)


def trained(loss, config=CONFIG, net=None, seed=1, **more):
    model = train(net or a_net(), loss, some_images(size=8), config, seed, NORMALISE, **more)
    return {**model.state_dict(), **{f"loss.{k}": v for k, v in loss.state_dict().items()}}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 9), st.integers(1, 9))
def test_the_share_of_a_pasted_label_is_that_of_its_pixels(seed, share, height, width):
    images, partners = torch.zeros(2, 3, height, width), torch.ones(2, 3, height, width)
    mixed, kept = cutmix(images, partners, share, seeded(seed))
    assert kept == pytest.approx(1 - mixed.mean().item(), abs=1e-6)
    assert torch.equal(mixed[0], mixed[1])
    filled = mixed[0, 0].nonzero()
    if len(filled):  # one box
        sides = filled.max(0).values - filled.min(0).values + 1
        assert int(sides.prod()) == len(filled)
        assert int(sides[0]) <= round(height * math.sqrt(1 - share))
    assert not images.any()


def test_a_box_is_centred_on_every_pixel_alike_and_cut_at_the_border():
    generator, hits = seeded(), torch.zeros(8, 8)
    for _ in range(4000):
        rows, columns = draw_box(1 - (3 / 8) ** 2, 8, 8, generator)  # three pixels wide
        hits[rows, columns] += 1
    middle, corner = hits[2:6, 2:6] / 4000, hits[[0, 0, 7, 7], [0, 7, 0, 7]] / 4000
    assert float((middle - 9 / 64).abs().max()) < 0.03  # five standard deviations
    assert float((corner - 4 / 64).abs().max()) < 0.02


def test_mixup_is_the_weighted_mean():
    one, two = torch.randn(2, 4, 1, 3, 3, generator=seeded())
    assert torch.allclose(mixup(one, two, 0.3), 0.3 * one + 0.7 * two)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, "half"])
def test_mixtures_that_are_none_are_refused(share):
    one, two = torch.randn(2, 4, 1, 3, 3, generator=seeded())
    for mix in (mixup, lambda *given: cutmix(*given, seeded())):
        with pytest.raises(ValueError, match="`share` must be a number from 0 to 1"):
            mix(one, two, share)
        with pytest.raises(ValueError, match=r"same shape.*\(4, 1, 3, 3\) and \(3, 1, 3, 3\)"):
            mix(one, two[:3], 0.5)


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_shares_follow_the_beta_distribution(beta):
    generator = seeded()
    shares = np.array([draw_share(beta, generator) for _ in range(3000)])
    assert shares.mean() == pytest.approx(0.5, abs=0.04)
    assert shares.var() == pytest.approx(1 / (4 * (2 * beta + 1)), rel=0.1)


class Looks(torch.nn.Module):
    """Stands in the place of GLMC and keeps what it is given."""

    recipe = "glmc"

    def __init__(self):
        super().__init__()
        self.glmc, self.seen = make_loss("glmc", COUNTS), []

    def forward(self, logits, labels, views):
        self.seen.append((logits, labels, views))
        return self.glmc(logits, labels, views)


def test_both_branches_and_heads_see_what_they_should():
    net, loss = a_net().eval(), Looks()  # in eval mode nothing depends on the rest of the batch
    views, partners = (tuple(torch.randn(2, 5, 1, 8, 8, generator=seeded(i))) for i in (1, 2))
    batch = Batch(views, torch.tensor([0, 1, 2, 0, 1]), partners, torch.tensor([2, 2, 1, 0, 0]))
    value = RECIPES["glmc"].objective(net, loss, batch, seeded(5))
    ((logits, labels, seen),) = loss.seen
    generator = seeded(5)
    share = draw_share(0.5, generator)
    pasted, kept = cutmix(views[1], partners[1], share, generator)
    mixed = share * views[0] + (1 - share) * partners[0]
    assert seen.shares == pytest.approx((share, kept))
    assert torch.equal(seen.partner_labels, batch.partner_labels)
    for images, rebalanced, branch in ((mixed, logits, 0), (pasted, seen.local_logits, 1)):
        features = net.features(images)
        assert torch.allclose(rebalanced, net.head(features), atol=1e-5)
        assert torch.allclose(seen.plain_logits[branch], net.extras.plain(features), atol=1e-5)
        projection = net.extras.projector(features)
        assert torch.allclose(seen.projections[branch], projection, atol=1e-5)
        assert torch.allclose(seen.predictions[branch], net.extras.predictor(projection), atol=1e-5)
    assert value.item() == pytest.approx(loss.glmc(logits, labels, seen).item())
    assert isinstance(seen, MixedViews)


@pytest.mark.parametrize("hyper", [{}, {"inverse": {}}, {"drw_epoch": 2}, {"defer_epoch": 1}])
def test_resuming_after_any_epoch_gives_the_same_bits(hyper):
    keep = KeepStates()
    whole = trained(make_loss("glmc", COUNTS, **hyper), callbacks=[keep])
    for epoch in (1, 2):
        again = trained(make_loss("glmc", COUNTS, **hyper), net=a_net(7), state=keep.states[epoch])
        assert same(again, whole)
    assert not same(trained(make_loss("glmc", COUNTS, **hyper), seed=2), whole)


@pytest.mark.parametrize("settings", [{"precision": "bfloat16"}, {"memory_format": "channels_last"}])
def test_other_precision_and_layout(settings):
    config = TrainConfig(**{**CONFIG.to_dict(), **settings})
    assert all(torch.isfinite(value).all() for value in trained(make_loss("glmc", COUNTS), config).values())


@pytest.mark.parametrize("partner", ["inverse", "balanced", "instance", "square_root"])
def test_partners_come_from_the_sampling_that_the_loss_names(partner):
    assert RECIPES[make_loss("glmc", COUNTS, partner=partner).recipe].partner == partner


def test_the_loss_knows_every_sampling():
    assert set(PARTNERS) == set(SAMPLINGS)


def test_the_head_that_is_evaluated_learns():
    # two classes, bright and dark
    labels = torch.arange(60) % 2
    pixels = (labels * 120 + 60).to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 8, 8)
    config = TrainConfig(epochs=12, batch=20, lr=0.05, device="cpu")
    net = build_net({"depth": 8, "width": 2, "extras": "glmc"}, 2, 1, 0)
    train(net, make_loss("glmc", [30, 30]), Images(pixels, labels), config, 0, NORMALISE)
    inputs = (pixels.float() / 255 - 0.5) / 0.25
    assert (net.eval()(inputs).argmax(1) == labels).float().mean() > 0.95


def test_a_batch_of_one_trains():
    part = Images(some_images(1, size=16).images, torch.tensor([0]))
    loss = make_loss("glmc", COUNTS)
    loss.class_counts = None  # one image of three classes
    start, end = (
        a_net().state_dict(),
        train(a_net(), loss, part, TrainConfig(epochs=1, device="cpu"), 0, NORMALISE).state_dict(),
    )
    assert all(torch.isfinite(value).all() for value in end.values())
    assert not torch.equal(end["head.weight"], start["head.weight"])


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (a_net(extras=None), r"loss `glmc` trains further heads.*found none.*`extras=\"glmc\"`"),
        (a_net(extras="bcl"), "found BCLHeads"),
        (torch.nn.Sequential(small_net()), "asks the network for `features` and `head`"),
    ],
)
@pytest.mark.parametrize("hyper", [{}, {"defer_epoch": 1}])
def test_a_network_without_the_further_heads_is_refused_at_once(net, words, hyper):
    with pytest.raises(ValueError, match=words):
        trained(make_loss("glmc", COUNTS, **hyper), net=net)


def test_a_batch_without_partners_and_a_loss_without_beta_are_named():
    batch = Batch((torch.zeros(2, 1, 8, 8),), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="two views of a batch with two of its partners; found 0"):
        RECIPES["glmc"].objective(a_net(), make_loss("glmc", COUNTS), batch, seeded())
    with pytest.raises(ValueError, match="`beta` of the loss `glmc`; found a FocalLoss without one"):
        beta_of(make_loss("focal", COUNTS))
