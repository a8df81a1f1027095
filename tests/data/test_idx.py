"""Fashion-MNIST from IDX files: small trees in the official layouts, broken ones, and the real data."""

import gzip
import struct

import numpy as np
import pytest
import torch

from lt_lib.data import load, normalisation, split
from lt_lib.data.idx import DEBIAN_FOLDER, read_idx

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
has_real_data = pytest.mark.skipif(
    not DEBIAN_FOLDER.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def tree(folder, gz=False, n=20, m=10):
    """Write the four files and return their arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
        (np.arange(n) % 10).astype(np.uint8),
        rng.integers(0, 256, (m, 28, 28), dtype=np.uint8),
        (np.arange(m) % 10).astype(np.uint8),
    ]
    for name, array in zip(FILES, arrays, strict=True):
        content = idx(array)
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(content) if gz else content)
    return arrays


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("LT_DATA", raising=False)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("layout", ["", "FashionMNIST/raw", "fashion-mnist"])
def test_each_layout_is_found(tmp_path, layout, gz):
    arrays = tree(tmp_path / layout, gz)
    source = load("fashion_mnist", root=tmp_path)
    assert source.train.images.shape == (20, 1, 28, 28)
    np.testing.assert_array_equal(source.train.images[:, 0], arrays[0])
    np.testing.assert_array_equal(source.train.labels, arrays[1])
    np.testing.assert_array_equal(source.test.images[:, 0], arrays[2])
    np.testing.assert_array_equal(source.test.labels, arrays[3])
    assert source.class_names[9] == "Ankle boot"


def test_torchvision_reads_the_same_tree(tmp_path):
    from torchvision.datasets import FashionMNIST

    tree(tmp_path / "FashionMNIST" / "raw")
    ours = load("fashion_mnist", root=tmp_path)
    for theirs, part in (
        (FashionMNIST(tmp_path), ours.train),
        (FashionMNIST(tmp_path, train=False), ours.test),
    ):
        assert torch.equal(theirs.data, part.images[:, 0])
        assert torch.equal(theirs.targets, part.labels)
    assert tuple(FashionMNIST.classes) == ours.class_names


def test_the_environment_names_a_folder(tmp_path, monkeypatch):
    tree(tmp_path / "fashion-mnist")
    monkeypatch.setenv("LT_DATA", str(tmp_path))
    assert len(load("fashion_mnist").train) == 20


def test_pairs_come_from_the_same_files(tmp_path):
    tree(tmp_path, n=60, m=30)
    parts = split(load("fashion_pairs", root=tmp_path), calibration=2)
    assert parts.test.images.shape == (300, 1, 28, 56)
    assert parts.counts.tolist() == [4] * 100
    assert parts.class_names[1] == "T-shirt/top|Trouser"


@pytest.mark.parametrize("name", ["fashion_mnist", "fashion_pairs"])
def test_missing_files_say_where_and_how(tmp_path, name):  # guards D22
    with pytest.raises(
        FileNotFoundError, match=r"found none of its files in .*dataset-fashion-mnist.*download=True"
    ):
        load(name, root=tmp_path)


def test_one_missing_file_is_named(tmp_path):
    tree(tmp_path)
    (tmp_path / FILES[3]).unlink()
    with pytest.raises(FileNotFoundError, match=f"must hold four IDX files.*`{FILES[3]}` is missing"):
        load("fashion_mnist", root=tmp_path)


def test_nothing_is_downloaded_unasked_and_a_failed_download_is_told(tmp_path, monkeypatch):  # guards D22
    from torchvision.datasets import FashionMNIST

    asked = []

    def fail(self, root, download):
        asked.append(download)
        raise RuntimeError("host is down")

    monkeypatch.setattr(FashionMNIST, "__init__", fail)
    with pytest.raises(FileNotFoundError):
        load("fashion_mnist", root=tmp_path)
    assert asked == []
    with pytest.raises(
        RuntimeError, match=r"could not be downloaded into .*host is down.*pass their folder as `root`"
    ):
        load("fashion_mnist", root=tmp_path, download=True)
    assert asked == [True]


def test_a_download_ends_in_torchvisions_folder(tmp_path, monkeypatch):
    from torchvision.datasets import FashionMNIST

    monkeypatch.setattr(
        FashionMNIST,
        "__init__",
        lambda self, root, download: tree(tmp_path / "FashionMNIST" / "raw") and None,
    )
    assert len(load("fashion_mnist", root=tmp_path, download=True).train) == 20


BREAKS = {
    "truncated": (
        lambda b: b[:-5],
        r"must hold 15680 values.*20 x 28 x 28\); found 15675.*fetch the file again",
    ),
    "too long": (lambda b: b + b"xx", r"must hold 15680 values.*found 15682"),
    "cut in its header": (
        lambda b: b[:9],
        r"must be an IDX file of unsigned bytes in 3 dimensions.*found 00 00 08 03",
    ),
    "empty": (lambda b: b"", r"must be an IDX file.*found nothing"),
    "of another type": (lambda b: b"\0\0\x0d" + b[3:], r"beginning with 00 00 08 03; found 00 00 0d 03"),
    "a web page": (lambda b: b"<!DOCTYPE html>" + b, r"must be an IDX file.*found 3c 21 44 4f"),
}


@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("gz", [False, True])
def test_a_broken_file_is_refused(tmp_path, kind, gz):
    tree(tmp_path, gz)
    breaks, sentence = BREAKS[kind]
    path = tmp_path / (FILES[0] + ".gz" * gz)
    content = path.read_bytes()
    path.write_bytes(gzip.compress(breaks(gzip.decompress(content))) if gz else breaks(content))
    with pytest.raises(ValueError, match=sentence):
        load("fashion_mnist", root=tmp_path)


@pytest.mark.parametrize(
    "breaks",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b[:400] + bytes(50) + b[450:],
        lambda b: b"no gzip",
        lambda b: b[:-4] + b"\0\1\2\3",
    ],
    ids=["truncated", "overwritten", "not gzip", "wrong checksum"],
)
def test_a_broken_gzip_is_refused(tmp_path, breaks):
    tree(tmp_path, gz=True)
    path = tmp_path / (FILES[0] + ".gz")
    path.write_bytes(breaks(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"must be a whole gzip file; found a truncated or corrupt one.*Fetch the file"
    ):
        load("fashion_mnist", root=tmp_path)


def test_images_and_labels_of_different_lengths_are_refused(tmp_path):
    tree(tmp_path)
    (tmp_path / FILES[1]).write_bytes(idx((np.arange(19) % 10).astype(np.uint8)))
    with pytest.raises(ValueError, match=r"equally long; found 20 images and 19 labels"):
        load("fashion_mnist", root=tmp_path)


def test_labels_beyond_nine_are_refused(tmp_path):
    tree(tmp_path)
    (tmp_path / FILES[1]).write_bytes(idx(np.arange(20, dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"`train_labels` must be 0\.\.9.*found 19 \(1 times\)"):
        load("fashion_mnist", root=tmp_path)


def test_labels_in_the_place_of_images_are_refused(tmp_path):
    tree(tmp_path)
    with pytest.raises(ValueError, match=r"in 3 dimensions.*found 00 00 08 01"):
        read_idx(tmp_path / FILES[1], 3)


@has_real_data
def test_the_real_images_are_those_of_the_paper():
    source = load("fashion_mnist", root=DEBIAN_FOLDER)
    assert source.train.images.shape == (60_000, 1, 28, 28)
    assert source.counts.tolist() == [6000] * 10
    assert source.test.counts(10).tolist() == [1000] * 10
    mean, std = normalisation(source.train)
    assert (round(float(mean), 4), round(float(std), 4)) == (0.2860, 0.3530)  # the widely used constants
    parts = split(source, calibration=500, seed=0)
    assert parts.counts.tolist() == [5500] * 10
