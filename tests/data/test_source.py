"""Labelled images on entry: what is kept, what is refused, and what the fingerprints see."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lt_lib.data import Part, check_data_name, load, normalisation, source_from_arrays, split


def images(n, channels=1, size=4, seed=0):
    shape = (n, size, size) if channels == 1 else (n, size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def source(labels, **more):
    return source_from_arrays("toy", images(len(labels)), np.array(labels), **more)


# ---------------------------------------------------------------- what is kept


def test_digits_are_the_bundled_images_as_bytes():
    from sklearn.datasets import load_digits

    bundled, ours = load_digits(), load("digits")
    assert ours.train.images.shape == (1797, 1, 8, 8)
    assert ours.train.images.dtype == torch.uint8
    np.testing.assert_allclose(ours.train.images[:, 0].numpy() / 255 * 16, bundled.images, atol=16 / 510)
    assert ours.train.labels.tolist() == bundled.target.tolist()
    assert ours.class_names == tuple("0123456789")
    assert ours.counts.tolist() == np.bincount(bundled.target).tolist()
    assert ours.test is None


def test_printed_data_show_counts_and_shapes_but_no_pixels():
    digits = load("digits")
    assert repr(digits.train) == "Part(1797 images 1 x 8 x 8 uint8)"
    assert repr(digits) == (
        "Source('digits': 10 classes of 174 to 183 training images; train: 1797 images 1 x 8 x 8 uint8; "
        "test: none)"
    )
    parts = split(source([0, 0, 0, 0, 1, 1, 1, 1, 1]), calibration=1, test=1)
    assert repr(parts) == (
        "Split('toy': 2 classes of 2 to 3 training images; train: 5 images 1 x 4 x 4 uint8; "
        "calibration: 2 images 1 x 4 x 4 uint8; test: 2 images 1 x 4 x 4 uint8)"
    )
    assert len(repr(load("digit_pairs"))) < 500


def test_colour_images_become_channels_first():
    pixels = images(6, channels=3)
    part = source_from_arrays("toy", pixels, [0, 1, 2, 0, 1, 2]).train
    assert part.channels == 3
    assert torch.equal(part.images[4, 2], torch.from_numpy(pixels[4, :, :, 2].copy()))


def test_the_callers_array_is_copied():
    pixels = images(4)
    kept = source_from_arrays("toy", pixels, [0, 0, 1, 1]).train.images
    before = kept.clone()
    pixels[:] = 0
    assert torch.equal(kept, before)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_become_float32(dtype):
    pixels = (images(4) / 255).astype(dtype)
    kept = source_from_arrays("toy", pixels, [0, 0, 1, 1]).train.images
    assert kept.dtype == torch.float32
    np.testing.assert_allclose(kept[:, 0].numpy(), pixels, atol=1e-7)


def test_one_image_in_a_class_is_allowed_in_training():
    assert source([0, 1, 1, 2]).counts.tolist() == [1, 2, 1]


def test_a_class_without_test_images_is_allowed_and_left_to_the_metrics():  # guards D4
    kept = source([0, 1, 2], test_images=images(2), test_labels=[0, 2])
    assert kept.test.counts(kept.classes).tolist() == [1, 0, 1]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        # guards D6
        ([1, 2, 3, 3], r"`train_labels` must count from 0; found labels 1\.\.3.*np\.unique.*or subtract 1"),
        (
            [0, 1, 3, 3],
            r"Class 2 has 0 images in `train_labels`.*needs at least 1.*np\.unique.*close the gap",
        ),
        ([0, -1, 1, -1], r"`train_labels` must be class numbers from 0; found -1 \(2 times\).*np\.unique"),
        ([0, 1, 10**6, 0], r"`train_labels` must be 0\.\.\d+.*found 1000000 \(1 times\).*np\.unique"),
        ([0, 1, 10**12, 0], r"`train_labels` must be class numbers from 0; found 1000000000000"),
        ([0.0, 1.0, 1.0, 0.0], r"`train_labels` must be one-dimensional whole numbers.*float64"),
        ([[0], [1], [1], [0]], r"`train_labels` must be one-dimensional.*found shape \(4, 1\).*ravel"),
        ([0, 1, 1], r"must be equally long; found 4 images and 3 labels"),
        ([], r"`train_labels` must be one-dimensional whole numbers and not empty"),
    ],
)
def test_malformed_labels_are_refused(labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        source_from_arrays("toy", images(4), np.array(labels))


def test_the_remedy_in_the_message_works():  # guards D6
    labels = np.array([1, 7, 7, 3])
    renumbered = np.unique(labels, return_inverse=True)[1]
    assert source(renumbered).counts.tolist() == [1, 1, 2]


def test_a_named_class_without_images_is_refused():  # guards D1
    with pytest.raises(
        ValueError, match=r"Class 2 has 0 images in `train_labels` \(1 of 3 classes are empty\)"
    ):
        source([0, 1, 1], class_names=["a", "b", "c"])


def test_a_label_beyond_the_names_is_refused():
    with pytest.raises(ValueError, match=r"`train_labels` must be 0\.\.1.*found 2 \(1 times\)"):
        source([0, 1, 2], class_names=["a", "b"])


def test_a_test_label_that_training_never_shows_is_refused():
    with pytest.raises(ValueError, match=r"`test_labels` must be 0\.\.1.*found 5 \(1 times\)"):
        source([0, 1], test_images=images(2), test_labels=[0, 5])


def test_doubled_names_are_refused():
    with pytest.raises(ValueError, match=r"`class_names` must all differ; found `a` twice"):
        source([0, 1], class_names=["a", "a"])


@pytest.mark.parametrize(("given", "lacking"), [("images", "labels"), ("labels", "images")])
def test_half_a_test_part_is_refused(given, lacking):
    half = {"test_images": images(2)} if given == "images" else {"test_labels": [0, 1]}
    with pytest.raises(ValueError, match=f"`test_{given}` came without `test_{lacking}`"):
        source([0, 1], **half)


@pytest.mark.parametrize(
    ("pixels", "sentence"),
    [
        (
            np.full((4, 3, 3), np.nan),
            r"`train_images` must be finite; found 36 NaN.*4 images, the first in image 0",
        ),
        (np.full((4, 3, 3), np.inf), r"`train_images` must be finite"),
        (np.full((4, 3, 3), 1e300), r"`train_images` must be finite"),
        (np.full((4, 3, 3), 200.0), r"must lie in 0\.\.1; found 200\.\.200\. Divide by"),
        (np.full((4, 3, 3), -0.5), r"must lie in 0\.\.1; found -0\.5\.\.-0\.5"),
        (np.zeros((4, 3, 3), np.int64), r"must be uint8 in 0\.\.255 or floats in 0\.\.1; found int64"),
        (np.zeros((4, 3, 3), bool), r"found bool"),
        (np.zeros((4, 9), np.uint8), r"must be \(n, H, W\).*found shape \(4, 9\)"),
        (np.zeros((4, 8, 8, 2), np.uint8), r"found shape \(4, 8, 8, 2\)"),
        (np.zeros((4, 3, 8, 8), np.uint8), r"channels first\. Pass `train_images\.transpose\(0, 2, 3, 1\)`"),
        (np.zeros((4, 0, 8), np.uint8), r"not empty; found shape \(4, 0, 8\)"),
    ],
)
def test_malformed_images_are_refused(pixels, sentence):
    with pytest.raises(ValueError, match=sentence):
        source_from_arrays("toy", pixels, [0, 0, 1, 1])


def test_one_nan_pixel_is_found_and_named():
    pixels = images(4) / 255
    pixels[2, 1, 1] = np.nan
    with pytest.raises(ValueError, match=r"found 1 NaN or infinite pixels in 1 images, the first in image 2"):
        source_from_arrays("toy", pixels, [0, 0, 1, 1])


def test_a_test_part_of_another_shape_is_refused():
    with pytest.raises(
        ValueError, match=r"`test_images` must match `train_images`.*\(1, 4, 4.*found \(1, 5, 5"
    ):
        source([0, 1], test_images=images(2, size=5), test_labels=[0, 1])


def test_a_part_whose_fields_do_not_fit_is_refused():
    pixels, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"`labels` must be int64, one entry for each of the 3 images"):
        Part(pixels, labels[:2], labels)
    with pytest.raises(ValueError, match=r"`images` must be \(n, ch, H, W\) of uint8 or float32"):
        Part(pixels.double(), labels, labels)


@pytest.mark.parametrize(
    "name", ["digit", "cifar", "", "npz:", "npz:FILE", "folder:", "folder:DIR", "csv:FILE"]
)
def test_an_unknown_name_lists_the_known_ones(name):
    known = (
        "`name` must be one of cifar10, cifar100, csv:FILE, digit_pairs, digits, fashion_mnist, "
        "fashion_pairs, folder:DIR, imagenet_lt, inaturalist2018, isic2019, npz:FILE; found"
    )
    if name in ("npz:FILE", "folder:DIR", "csv:FILE"):  # a legal file name, if an odd one
        check_data_name(name.lower())
        return
    with pytest.raises(ValueError, match=known):
        load(name)


def test_a_near_miss_is_named():
    with pytest.raises(ValueError, match=r"Did you mean `fashion_mnist`\?"):
        load("fashion-mnist")


# ---------------------------------------------------------------- fingerprints, statistics, imports


def test_a_path_that_no_configuration_could_hold_is_refused():
    with pytest.raises(ValueError, match=r"text in UTF-8, .*; found `folder:/caf\\xe9`\. Rename the folder"):
        load("folder:" + os.fsdecode(b"/caf\xe9"))


def test_fingerprints_see_pixels_labels_and_draws():  # guards D18
    part = source([0, 0, 1, 1]).train
    assert part.fingerprint() == source([0, 0, 1, 1]).train.fingerprint()
    assert part.fingerprint() != source([0, 1, 0, 1]).train.fingerprint()
    other = part.images.clone()
    other[3, 0, 0, 0] ^= 1
    assert part.fingerprint() != Part(other, part.labels, part.index).fingerprint()
    again = Part(part.images, part.labels, part.index + 1)
    assert again.fingerprint() == part.fingerprint()
    assert again.index_fingerprint() != part.index_fingerprint()


def test_the_index_fingerprint_is_a_plain_hash_of_the_positions():  # guards D18
    part = source([0, 0, 1, 1]).train.take([1, 3])
    plain = b"torch.int64 (2,);" + np.array([1, 3], dtype="<i8").tobytes()
    assert part.index_fingerprint() == hashlib.sha256(plain).hexdigest()


def test_a_split_is_told_from_one_with_its_parts_exchanged():  # guards D18
    parts = split(source([0, 1] * 20), calibration=3, test=3, seed=0)
    swapped = type(parts)("toy", parts.train, parts.test, parts.calibration, parts.class_names, "")
    assert len({parts.fingerprint(), swapped.fingerprint(), parts.train.fingerprint()}) == 3


@pytest.mark.parametrize("scale", [1, 255])
def test_normalisation_is_the_pixel_mean_and_deviation(scale):
    pixels = images(50, channels=3)
    given = pixels if scale == 1 else pixels / 255
    mean, std = normalisation(source_from_arrays("toy", given, np.arange(50) % 2).train)
    assert mean.dtype == std.dtype == torch.float32
    np.testing.assert_allclose(mean, (pixels / 255).mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, (pixels / 255).std((0, 1, 2)), rtol=1e-6)


def test_a_constant_channel_is_not_divided_by_zero():
    flat = source_from_arrays("toy", np.full((4, 3, 3), 7, np.uint8), [0, 0, 1, 1])
    assert normalisation(flat.train)[1].tolist() == [1.0]


def test_importing_loads_no_data_library_and_opens_no_connection():  # guards D22
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise SystemExit('network used')\n"
        "socket.socket.connect = socket.create_connection = refuse\n"
        "import lt_lib.data\n"
        "assert not {'torchvision', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
