import pytest
import torch
from small_training import NORMALISE, Images, KeepStates, same, small_net, some_images

from lt_lib.losses import make_loss
from lt_lib.nets import attach_extras, build_net
from lt_lib.training import Batch, TrainConfig, augment, train
from lt_lib.training.recipes import RECIPES
from lt_lib.training.resized import draw_crops, resized_crops

CONFIG = TrainConfig(epochs=3, batch=8, lr=0.05, augment="shift", device="cpu")
COUNTS = [11, 11, 11]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def a_net(seed=0, extras="bcl", **more):
    return build_net({"depth": 8, "width": 2, "extras": extras, **more}, 3, 1, seed)


def trained(loss, config=CONFIG, net=None, seed=1, **more):
    model = train(net or a_net(), loss, some_images(size=8), config, seed, NORMALISE, **more)
    return {**model.state_dict(), **{f"loss.{k}": v for k, v in loss.state_dict().items()}}


class Looks(torch.nn.Module):
    recipe = "bcl"

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, logits, labels, views):
        self.seen.append((logits, labels, views))
        return logits.sum()


@pytest.mark.parametrize("head", ["linear", "cosine", "etf"])
def test_the_first_view_is_classified_and_the_others_contrasted(head):
    net, loss = a_net(head=head).eval(), Looks()
    views = tuple(torch.randn(3, 5, 1, 8, 8, generator=seeded()))
    RECIPES["bcl"].objective(net, loss, Batch(views, torch.tensor([0, 1, 2, 0, 1])), seeded())
    ((logits, _, seen),) = loss.seen
    assert torch.allclose(logits, net(views[0]), atol=1e-5)
    for embeddings, view in zip(seen.embeddings, views[1:], strict=True):
        assert torch.allclose(embeddings, net.extras.projector(net.features(view)), atol=1e-5)
    assert torch.allclose(seen.prototypes, net.extras.prototypes(net.head.weight_matrix()), atol=1e-5)


@pytest.mark.parametrize(
    ("augmentation", "contrasted"),
    [("none", "resized_crop"), ("shift", "resized_crop"), ("crop_flip", "simclr"), ("randaugment", "simclr")],
)
def test_views_are_mirrored_only_where_the_first_one_is(augmentation, contrasted):
    config = TrainConfig(augment=augmentation)
    assert RECIPES["bcl"].augments(config) == (augmentation, contrasted, contrasted)


@pytest.mark.parametrize("hyper", [{}, {"inverse": {}}, {"drw_epoch": 2}, {"defer_epoch": 1}])
def test_resuming_after_any_epoch_gives_the_same_bits(hyper):
    keep = KeepStates()
    whole = trained(make_loss("bcl", COUNTS, **hyper), callbacks=[keep])
    for epoch in (1, 2):
        again = trained(make_loss("bcl", COUNTS, **hyper), net=a_net(7), state=keep.states[epoch])
        assert same(again, whole)
    assert not same(trained(make_loss("bcl", COUNTS, **hyper), seed=2), whole)


@pytest.mark.parametrize(
    "settings", [{"precision": "bfloat16"}, {"memory_format": "channels_last"}, {"augment": "crop_flip"}]
)
def test_other_precision_layout_and_views(settings):
    config = TrainConfig(**{**CONFIG.to_dict(), "epochs": 1, **settings})
    assert all(torch.isfinite(value).all() for value in trained(make_loss("bcl", COUNTS), config).values())


def test_a_batch_of_one_trains():
    part = Images(some_images(1, size=16).images, torch.tensor([0]))
    loss = make_loss("bcl", COUNTS)
    loss.class_counts = None  # one image of three classes
    start, end = (
        a_net().state_dict(),
        train(a_net(), loss, part, TrainConfig(epochs=1, device="cpu"), 0, NORMALISE).state_dict(),
    )
    assert all(torch.isfinite(value).all() for value in end.values())
    assert not torch.equal(end["head.weight"], start["head.weight"])


def own_net():
    net = small_net()
    net.dim, net.classes = 4, 3
    return attach_extras(net, "bcl", 0)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (a_net(extras=None), r"loss `bcl` trains further heads.*found none.*`extras=\"bcl\"`"),
        (a_net(extras="glmc"), "found GLMCHeads"),
        (own_net(), r"`weight_matrix\(\)`, \(C, d\); found a Linear without it"),
    ],
)
def test_a_network_that_cannot_be_contrasted_is_refused_at_once(net, words):
    with pytest.raises(ValueError, match=words):
        trained(make_loss("bcl", COUNTS), net=net)


def test_a_batch_of_one_view_is_named():
    batch = Batch((torch.zeros(2, 1, 8, 8),), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"needs three views of each image.*found 1"):
        RECIPES["bcl"].objective(a_net(), make_loss("bcl", COUNTS), batch, seeded())


def test_crops_lie_within_the_image_and_have_the_area_drawn():
    crops = draw_crops(20_000, seeded())
    low, high = crops.centres - crops.sides / 2, crops.centres + crops.sides / 2
    assert bool((low > -1e-6).all() and (high < 1 + 1e-6).all())
    area, ratio = crops.sides.prod(1), crops.sides[:, 0] / crops.sides[:, 1]
    assert 0.199 < float(area.min()) < 0.21
    assert float(area.mean()) == pytest.approx(0.59, abs=0.015)  # a little below 0.6: sides are cut
    assert bool(((ratio > 0.749) & (ratio < 1.334)).all())
    for factor in (crops.brightness, crops.contrast):
        assert float((factor == 1).float().mean()) == pytest.approx(0.2, abs=0.015)
        assert bool(((factor >= 0.6) & (factor <= 1.4)).all())


def plain_crops(n, **changed):
    crops = draw_crops(n, seeded())
    values = {
        "sides": torch.ones(n, 2),
        "centres": torch.full((n, 2), 0.5),
        "brightness": torch.ones(n),
        "contrast": torch.ones(n),
    }
    return type(crops)(**{**values, **changed})


def test_a_whole_crop_unchanged_is_the_image():
    images = some_images(5, channels=3, size=8).images
    assert torch.allclose(resized_crops(images, plain_crops(5)), images.float(), atol=1e-3)


def test_a_crop_of_a_ramp_is_a_ramp_between_its_ends():
    across = torch.arange(16.0).expand(1, 1, 16, 16) + 40
    images = torch.cat((across, across.transpose(2, 3)))
    crops = plain_crops(2, sides=torch.tensor([[0.5, 0.25]] * 2), centres=torch.tensor([[0.5, 0.375]] * 2))
    pixels = resized_crops(images.to(torch.uint8), crops)
    # pixel k of 16 shows the place left + (k + 1/2) * side, where the ramp is 16 * place - 1/2
    ends = [40 + 16 * (0.25 + s * 0.5) - 0.5 for s in (1 / 32, 31 / 32)]
    assert torch.allclose(pixels[0, 0, 3], torch.linspace(*ends, 16), atol=1e-3)
    ends = [40 + 16 * (0.25 + s * 0.25) - 0.5 for s in (1 / 32, 31 / 32)]
    assert torch.allclose(pixels[1, 0, :, 3], torch.linspace(*ends, 16), atol=1e-3)


@pytest.mark.parametrize("white", [255, 1.0])
def test_brightness_and_contrast_stop_at_black_and_white(white):
    images = torch.tensor([0.0, 0.25, 0.5, 1.0]).view(1, 1, 2, 2).mul(white)
    images = images.to(torch.uint8) if white == 255 else images
    factors = {"brightness": torch.tensor([1.2]), "contrast": torch.tensor([1.4])}
    pixels = resized_crops(images, plain_crops(1, **factors)) / white
    first = (images.float() / white * 1.2).clamp(max=1)
    expected = (first.mean() + 1.4 * (first - first.mean())).clamp(0, 1)
    assert torch.allclose(pixels, expected, atol=1e-5)


def test_views_of_an_image_depend_on_its_key_alone():
    images = some_images(6, size=8).images
    choices = augment.draw(6, "resized_crop", seeded())
    every = augment.take(images, torch.arange(6), choices, "resized_crop")
    some = augment.take(images, torch.tensor([4, 1]), choices, "resized_crop")
    assert torch.allclose(some, every[[4, 1]])
    keyed = augment.take(images, torch.tensor([2, 2]), choices, "resized_crop", torch.tensor([2, 3]))
    assert torch.allclose(keyed[0], every[2])
    assert not torch.allclose(keyed[1], every[2])
