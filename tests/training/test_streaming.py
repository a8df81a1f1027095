"""Training and evaluation of images that stay on disk, against the same images in memory."""

import pytest
import torch
from PIL.Image import fromarray
from small_training import NORMALISE, Images, small_net, some_images

from lt_lib.data.files import ImageFiles
from lt_lib.losses import make_loss
from lt_lib.training import Recorder, TrainConfig, evaluate, train
from lt_lib.training.pictures import PICTURES

COLOURS = (torch.full((3,), 0.5), torch.full((3,), 0.25))
NAMES = [f"{i:02}.png" for i in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for name, image in zip(NAMES, some_images(20, channels=3, size=16).images, strict=True):
        fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(root / name)
    return root


@pytest.fixture
def files(folder):
    return Images(ImageFiles(folder, NAMES, 16), torch.arange(20) % 3)


@pytest.fixture
def memory(files):
    return Images(files.images[:], files.labels)


def trained(part, callbacks=(), **settings):
    config = TrainConfig(**{"epochs": 2, "batch": 8, "device": "cpu", **settings})
    loss = make_loss("ce", part.labels.bincount())
    net = train(small_net(channels=3), loss, part, config, 1, COLOURS, callbacks)
    return [value.clone() for value in net.state_dict().values()]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("augment", ["none", "crop_flip", "autoaugment", "simclr"])
def test_files_train_to_the_bits_of_the_same_images_in_memory(files, memory, augment):
    assert same(trained(files, augment=augment), trained(memory, augment=augment))


@pytest.mark.parametrize("settings", [{"augment": "imagenet"}, {"augment": "crop_flip", "views": "three"}])
def test_no_bit_depends_on_the_number_of_workers(files, settings):
    alone = trained(files, sampling="balanced", **settings)
    for workers in (1, 2):
        assert same(trained(files, sampling="balanced", workers=workers, **settings), alone)


def test_images_in_memory_go_through_workers_too(memory):
    assert same(trained(memory, augment="autoaugment", workers=2), trained(memory, augment="autoaugment"))


def test_evaluation_and_recorder_read_files(files, memory):
    net = small_net(channels=3)
    before = torch.get_rng_state()
    for workers in (0, 2):
        one, two = (evaluate(net, part, COLOURS, batch=7, workers=workers) for part in (files, memory))
        assert torch.equal(one.logits, two.logits)
        assert torch.equal(one.labels, two.labels)
    assert torch.equal(torch.get_rng_state(), before)
    recorders = [Recorder(part, part, 3) for part in (files, memory)]
    for part, recorder in zip((files, memory), recorders, strict=True):
        trained(part, [recorder], augment="crop_flip")
    assert recorders[0].rows == recorders[1].rows


def test_large_pictures_train_under_every_augmentation_of_pictures(tmp_path):
    image = some_images(1, channels=3, size=60).images[0]
    fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize((90, 60)).save(tmp_path / "a.png")
    part = Images(ImageFiles(tmp_path, ["a.png"] * 6, 16), torch.arange(6) % 3)
    plain = trained(part, epochs=1)
    for name in PICTURES:
        weights = trained(part, augment=name, epochs=1)
        assert all(torch.isfinite(value).all() for value in weights)
        assert not same(weights, plain), f"`{name}` changed no pixel"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_picture_is_named_in_one_sentence(folder, tmp_path, workers):
    for name in NAMES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    whole = (tmp_path / "07.png").read_bytes()
    part = Images(ImageFiles(tmp_path, NAMES, 16), torch.arange(20) % 3)
    (tmp_path / "07.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"^`07\.png` in .* must be a whole image file"):
        trained(part, augment="imagenet", workers=workers)


def test_workers_are_a_whole_number():
    with pytest.raises(ValueError, match="`workers` must be a whole number from 0 to 1024; found -1"):
        TrainConfig(workers=-1)


def test_channels_must_fit(files):
    with pytest.raises(ValueError, match="images have 3 channel"):
        train(
            small_net(),
            make_loss("ce", files.labels.bincount()),
            files,
            TrainConfig(device="cpu"),
            0,
            NORMALISE,
        )
