import pytest
import torch
from small_training import some_images

from lt_lib.training import augment


def draw(n, name, seed=0):
    return augment.draw(n, name, torch.Generator().manual_seed(seed))


def window(image, name, row, column, flip):
    """Slow oracle: pad, cut, mirror one image."""
    border = augment.PADDING[name]
    height, width = image.shape[1:]
    cut = torch.nn.functional.pad(image, (border,) * 4)[:, row : row + height, column : column + width]
    return cut.flip(2) if flip else cut


@pytest.mark.parametrize("name", ["shift", "crop_flip"])
def test_each_image_is_a_window_of_its_padded_self(name):
    images = some_images(20, channels=3, size=7).images
    choices = draw(20, name)
    index = torch.randperm(20, generator=torch.Generator().manual_seed(1))[:11]
    taken = augment.take(augment.pad(images, name), index, choices, name)
    for image, i in zip(taken, index.tolist(), strict=True):
        row, column, flip = (int(v[i]) for v in (choices.rows, choices.columns, choices.flip))
        assert torch.equal(image, window(images[i], name, row, column, flip))


def test_no_augmentation_returns_the_pixels():
    images = some_images(9).images
    index = torch.tensor([3, 1, 1])
    assert torch.equal(
        augment.take(augment.pad(images, "none"), index, draw(9, "none"), "none"), images[index]
    )


def test_a_shift_of_a_digit_with_a_margin_keeps_its_pixels():
    images = some_images(50, size=8).images.clone()
    images[:, :, [0, -1]] = 0
    images[:, :, :, [0, -1]] = 0
    taken = augment.take(augment.pad(images, "shift"), torch.arange(50), draw(50, "shift"), "shift")
    # the multiset of pixels is unchanged: nothing is interpolated, nothing falls off
    assert torch.equal(taken.flatten(1).sort().values, images.flatten(1).sort().values)
    assert not torch.equal(taken, images)


def test_all_choices_occur_about_equally_often():
    choices = draw(30_000, "crop_flip")
    for offsets in (choices.rows, choices.columns):
        share = torch.bincount(offsets, minlength=9) / 30_000
        assert len(share) == 9
        assert float((share - 1 / 9).abs().max()) < 0.01  # five standard deviations
    assert float(choices.flip.float().mean()) == pytest.approx(0.5, abs=0.015)
    assert not bool(draw(1000, "shift").flip.any())  # a mirrored digit is no digit


def test_the_draw_follows_its_generator_and_leaves_the_global_state():
    before = torch.get_rng_state()
    one, two = draw(40, "crop_flip", 5), draw(40, "crop_flip", 5)
    assert torch.equal(one.rows, two.rows)
    assert torch.equal(one.flip, two.flip)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_augmentation_is_refused():
    with pytest.raises(ValueError, match="Did you mean `shift`"):
        draw(3, "shfit")
