import random

import numpy as np
import pytest
import torch
from PIL.Image import fromarray
from small_training import NORMALISE, Images, small_net, some_images
from torchvision.transforms import v2

from lt_lib.losses import make_loss
from lt_lib.training import TrainConfig, Trainer, train
from lt_lib.training.loader import Pictures, View
from lt_lib.training.pictures import PICTURES, _cutout, _jittered, as_picture, as_pixels, rendered
from lt_lib.training.sampling import Places

AS_STORED = (torch.zeros(1), torch.ones(1) / 255)


def pictures_of(images, name, bounds, order=None, epoch=2):
    order = torch.arange(len(images)) if order is None else order
    batches = Pictures(images, Places(order, order), bounds, [View(name, (7, epoch, 1, 0))])
    found = torch.cat([batches[k][0] for k in range(len(bounds))])
    return found[order.argsort()]


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_depends_on_its_own_number_alone(name, channels):
    images = some_images(9, channels=channels, size=12).images
    whole = pictures_of(images, name, [(0, 9)])
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    order = torch.tensor([4, 1, 8, 0, 2, 7, 5, 3, 6])
    assert torch.equal(pictures_of(images, name, [(0, 2), (2, 3), (3, 9)], order), whole)
    assert not torch.equal(pictures_of(images, name, [(0, 9)], epoch=3), whole)
    assert len({bytes(picture.numpy().tobytes()) for picture in whole}) > 6  # they differ from each other


def global_state():
    legacy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), str(legacy), random.getstate()


@pytest.mark.parametrize("name", PICTURES)
def test_global_random_state_is_untouched_and_unused(name):
    config = TrainConfig(epochs=1, batch=16, augment=name, device="cpu")
    before = global_state()
    one = train(small_net(), make_loss("ce", [11] * 3), some_images(), config, 0, NORMALISE)
    assert global_state() == before
    torch.manual_seed(5)
    two = train(small_net(), make_loss("ce", [11] * 3), some_images(), config, 0, NORMALISE)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_float_images_are_those_of_bytes():
    pixels = some_images(5, size=10).images
    for name in PICTURES:
        whole, parts = (pictures_of(images, name, [(0, 5)]) for images in (pixels, pixels / 255))
        assert torch.equal(whole / 255, parts)


def test_pictures_and_pixels_are_inverse():
    for channels in (1, 3):
        pixels = some_images(1, channels=channels, size=5).images[0]
        assert torch.equal(as_pixels(as_picture(pixels)), pixels)
    with pytest.raises(ValueError, match=r"needs grey or RGB images; found 2 channels\. Use `crop_flip`"):
        as_picture(some_images(1, channels=2).images[0])


def test_autoaugment_is_crop_mirror_policy_and_a_hole():
    """Step by step with torchvision and tensors, from the same draws."""
    images = some_images(20, channels=3, size=32).images
    found = rendered([as_picture(image) for image in images], range(20), "autoaugment", 32, False)
    policy = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    for seed, (image, mine) in enumerate(zip(images, found, strict=True)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            left, top = (int(torch.randint(9, ())) for _ in range(2))
            crop = torch.nn.functional.pad(image, (4,) * 4)[:, top : top + 32, left : left + 32]
            crop = crop.flip(2) if float(torch.rand(())) < 0.5 else crop
            expected = as_pixels(policy(as_picture(crop)))
            column, row = (int(torch.randint(32, ())) for _ in range(2))
        inside = (torch.arange(32) >= row - 8) & (torch.arange(32) < row + 8)
        across = (torch.arange(32) >= column - 8) & (torch.arange(32) < column + 8)
        expected[:, inside[:, None] & across] = 0
        assert torch.equal(mine, expected)


def test_the_hole_scales_with_the_picture():
    white = [fromarray(np.full((64, 64, 3), 255, np.uint8))] * 200
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        holes = [int((as_pixels(_cutout(p.copy(), 32))[0] == 0).sum()) for p in white]
    assert max(holes) == 32 * 32
    assert 16 * 16 <= min(holes) < 20 * 20  # centred in a corner: a quarter is left


def slope(size=32):
    """Grey levels that rise from left to right."""
    return fromarray(np.tile(np.linspace(40, 200, size).astype(np.uint8), (size, 1)))


@pytest.mark.parametrize("name", ["simclr", "imagenet"])
def test_half_the_crops_are_mirrored_and_of_the_stated_sizes(name):
    found = rendered([slope()] * 1500, range(1500), name, 16, True).float()[:, 0]
    rise = found[:, :, -1].mean(1) - found[:, :, 0].mean(1)
    assert found.shape == (1500, 16, 16)
    assert float((rise < 0).float().mean()) == pytest.approx(0.5, abs=0.065)  # five standard deviations
    if name == "imagenet":  # no jitter: the rise is that of the crop's width
        width = rise.abs() / 160 * 16 / 15
        assert float(width.max()) <= 1.1
        assert float(width.min()) == pytest.approx((0.08 * 3 / 4) ** 0.5, abs=0.1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            crop = v2.RandomResizedCrop(16)
            theirs = torch.stack([as_pixels(crop(slope())) for _ in range(1500)]).float()[:, 0]
        other = (theirs[:, :, -1].mean(1) - theirs[:, :, 0].mean(1)).abs()
        assert float(rise.abs().mean()) == pytest.approx(float(other.mean()), rel=0.05)
        assert float(rise.abs().std()) == pytest.approx(float(other.std()), rel=0.1)


@pytest.mark.parametrize("shape", [(2, 60), (60, 2)])
def test_a_picture_too_long_for_any_crop_gives_its_middle(shape):
    """As torchvision does after ten tries."""
    pixels = torch.zeros(1, *shape, dtype=torch.uint8)
    (pixels[0] if shape[1] > shape[0] else pixels[0].T)[:, 28:31] = 200
    found = rendered([as_picture(pixels)] * 8, range(8), "imagenet", 6, True)
    assert bool((found == 200).all())


def test_jitter_changes_as_torchvision_does():
    image = as_picture(some_images(1, channels=3, size=12).images[0])
    functional = v2.functional
    changes = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation)
    for seed in range(6):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = _jittered(image)
            torch.manual_seed(seed)
            amounts, expected = torch.empty(4).uniform_(-1, 1).tolist(), image
            for k in torch.randperm(4).tolist():
                if k == 3:
                    expected = functional.adjust_hue(expected, 0.1 * amounts[3])
                else:
                    expected = changes[k](expected, 1 + 0.4 * amounts[k])
        assert torch.equal(as_pixels(found), as_pixels(expected))


def test_simclr_greys_a_fifth_and_jitters_four_fifths():
    colour = fromarray(np.full((8, 8, 3), (180, 90, 60), np.uint8))
    found = rendered([colour] * 2000, range(2000), "simclr", 8, False)
    grey = ((found[:, 0] == found[:, 1]) & (found[:, 1] == found[:, 2])).all((1, 2)).float().mean()
    same = (found == torch.tensor([180, 90, 60]).view(3, 1, 1)).all(3).all(2).all(1).float().mean()
    assert float(grey) == pytest.approx(0.2, abs=0.045)
    assert float(same) == pytest.approx(0.2 * 0.8, abs=0.045)


def test_brightness_changes_by_up_to_two_fifths():
    plain = fromarray(np.full((8, 8), 100, np.uint8))  # on which contrast has no effect
    found = rendered([plain] * 500, range(500), "simclr", 8, False)[:, 0, 4, 4]
    assert 60 <= int(found.min()) < 62
    assert 138 < int(found.max()) <= 140


def test_randaugment_applies_two_operations_of_torchvision():
    image = as_picture(some_images(1, channels=3, size=32).images[0])
    found = rendered([image], [3], "randaugment", 32, False)[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        left, top = (int(torch.randint(9, ())) for _ in range(2))
        crop = v2.functional.crop(v2.functional.pad(image, [4] * 4), top, left, 32, 32)
        crop = v2.functional.hflip(crop) if float(torch.rand(())) < 0.5 else crop
        assert torch.equal(found, as_pixels(v2.RandAugment(2, 10)(crop)))


class Counting(torch.nn.Module):
    """A network that notes how many images each layer sees."""

    def __init__(self):
        super().__init__()
        self.net, self.sizes = small_net(), []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.net(x)


def test_three_views_pass_the_network_together_and_the_first_enters_the_loss():
    seen = []

    class Loss(torch.nn.Module):
        def forward(self, logits, labels):
            seen.append((logits.detach(), labels))
            return torch.nn.functional.cross_entropy(logits, labels)

    config = TrainConfig(epochs=1, batch=12, augment="crop_flip", views="three", lr=0.0, device="cpu")
    net = Counting()
    trainer = Trainer(net, Loss(), some_images(), config, 1, NORMALISE)
    trainer.run_epoch(0)
    assert net.sizes == [36, 36, 27]
    batch = next(iter(trainer.batches(0)))
    logits, labels = seen[0]
    assert len(batch.views) == 3
    assert logits.shape == (12, 3)
    assert torch.equal(labels, batch.labels)
    net.train()
    # batch normalisation saw all three views
    assert torch.allclose(logits, net(torch.cat(batch.views))[:12], atol=1e-6)
    assert not torch.allclose(logits, net(batch.views[0]), atol=1e-3)


def test_the_first_of_three_views_is_the_only_view_of_one():
    batches = [
        next(iter(Trainer(small_net(), make_loss("ce", [1] * 3), some_images(), c, 1, NORMALISE).batches(1)))
        for c in (TrainConfig(augment="crop_flip", views=v, device="cpu") for v in ("one", "three"))
    ]
    assert torch.equal(batches[0].views[0], batches[1].views[0])
    assert not torch.equal(batches[1].views[1], batches[1].views[2])


def test_labels_stay_with_their_pictures():
    labels = torch.arange(30) % 3
    pixels = (60 + 60 * labels).to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 8, 8)
    config = TrainConfig(batch=30, augment="imagenet", device="cpu")
    trainer = Trainer(small_net(), make_loss("ce", [1] * 3), Images(pixels, labels), config, 0, AS_STORED)
    (batch,) = trainer.batches(0)
    assert torch.equal(batch.views[0][:, 0, 4, 4].round().long(), 60 + 60 * batch.labels)
