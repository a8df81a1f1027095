"""CIFAR from small batches in the official layout, which the tests write; torchvision reads the same."""

import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from lt_lib.data import check_data_name, cifar, exponential_counts, load, long_tail, source_from_arrays

FACTS = json.loads((Path(__file__).parents[1] / "facts" / "long_tail_subsets.json").read_text())


def text(value):
    """A byte string as Python 2 pickled it."""
    value = value.encode("latin1") if isinstance(value, str) else value
    return (
        b"U" + bytes([len(value)]) + value
        if len(value) < 256
        else b"T" + len(value).to_bytes(4, "little") + value
    )


def array(values):
    """A uint8 array as NumPy 1 under Python 2 pickled it (protocol 2)."""
    rows, columns = values.shape
    shape = b"J" + rows.to_bytes(4, "little") + b"J" + columns.to_bytes(4, "little") + b"\x86"
    dtype = (
        b"cnumpy\ndtype\n" + text("u1") + b"K\x00K\x01\x87R(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xff" * 1
    )
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R"
    return made + b"(K\x01" + shape + dtype + b"\x89" + text(values.tobytes()) + b"tb"


def pickled(entries):
    """A dictionary of arrays, lists of numbers and lists of texts, as the official files hold it."""
    content = b"\x80\x02}("
    for key, value in entries.items():
        content += text(key)
        if isinstance(value, np.ndarray):
            content += array(value)
        else:
            items = [text(v) if isinstance(v, str) else b"K" + bytes([v]) for v in value]
            content += b"](" + b"".join(items) + b"e"
    return content + b"u."


def pixels(n, seed):
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def batch(files, n, seed, classes=10):
    return pickled({"data": pixels(n, seed), files.labels: [(i + seed) % classes for i in range(n)]})


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that writes a small set and makes its checksums the published ones."""

    def build(name, classes=10, **contents):
        files = cifar.SETS[name]
        folder = tmp_path / files.folder
        folder.mkdir()
        contents = {file: batch(files, 20, i, classes) for i, file in enumerate(files.train)} | contents
        contents |= {file: batch(files, 10, 9, classes) for file in files.test}
        contents |= {file: pickled({files.names: [f"c{c}" for c in range(classes)]}) for file in files.meta}
        for file, content in contents.items():
            (folder / file).write_bytes(content)
        sums = {file: hashlib.md5(content).hexdigest() for file, content in contents.items()}
        parts = {p: {f: sums[f] for f in getattr(files, p)} for p in ("train", "test", "meta")}
        monkeypatch.setitem(cifar.SETS, name, replace(files, **parts))
        return folder

    return build


@pytest.mark.filterwarnings("ignore:.*numpy.core")  # torchvision unpickles by the names of NumPy 1
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_set_is_what_torchvision_reads(write, tmp_path, monkeypatch, name):
    write(name)
    source, files = load(name, root=tmp_path), cifar.SETS[name]
    theirs = getattr(datasets, name.upper())
    monkeypatch.setattr(theirs, "train_list", list(files.train.items()))
    monkeypatch.setattr(theirs, "test_list", list(files.test.items()))
    monkeypatch.setattr(theirs, "meta", theirs.meta | {"md5": next(iter(files.meta.values()))})
    parts = [theirs(str(tmp_path), train=train) for train in (True, False)]
    for part, other in zip((source.train, source.test), parts, strict=True):
        np.testing.assert_array_equal(part.images.permute(0, 2, 3, 1), other.data)
        assert part.labels.tolist() == other.targets
    assert source.class_names == tuple(parts[0].classes) == tuple(f"c{c}" for c in range(10))
    assert (source.name, source.train.images.dtype) == (name, torch.uint8)


def test_the_folder_itself_its_parent_and_the_environment_lead_to_the_files(write, tmp_path, monkeypatch):
    folder = write("cifar10")
    monkeypatch.setenv("LT_DATA", str(tmp_path))
    sources = [load("cifar10", root=root) for root in (tmp_path, folder, None)]
    assert len({source.train.fingerprint() for source in sources}) == 1
    assert len(sources[0].train) == 100


def test_missing_files_are_one_sentence(write, tmp_path, monkeypatch):
    monkeypatch.delenv("LT_DATA", raising=False)
    for root in (None, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"CIFAR-100 must lie in .*cifar-100-python\.tar\.gz.*`root`"
        ):
            load("cifar100", root=root)
    (write("cifar10") / "data_batch_3").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"must hold `data_batch_3` of CIFAR-10; it is missing\. Unpack"
    ):
        load("cifar10", root=tmp_path)


def test_a_download_is_never_made_unasked_and_needs_a_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LT_DATA", raising=False)

    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("torchvision.datasets.CIFAR10.download", offline)
    with pytest.raises(ValueError, match="needs a `root` to write to"):
        load("cifar10", download=True)
    with pytest.raises(RuntimeError, match=r"could not be downloaded .*\(no network\)"):
        load("cifar10", root=tmp_path, download=True)
    with pytest.raises(FileNotFoundError):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize("damage", [lambda c: c[:-100], lambda c: c + b" ", lambda c: b""])
def test_a_file_that_is_not_the_published_one_is_refused_before_it_is_opened(write, tmp_path, damage):
    path = write("cifar10") / "data_batch_2"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"data_batch_2` must be the published file with MD5 [0-9a-f]{32}; found"
    ):
        load("cifar10", root=tmp_path)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("touched-by-a-pickle"),)


@pytest.mark.parametrize("evil", [Evil(), np.load, np.array([Evil()], dtype=object)])
def test_nothing_but_arrays_and_texts_is_unpickled_even_with_the_right_checksum(
    write, tmp_path, monkeypatch, evil
):
    monkeypatch.chdir(tmp_path)
    write("cifar10", data_batch_1=pickle.dumps({"data": evil}))
    with pytest.raises(ValueError, match="must hold arrays and texts only, but it asks for `"):
        load("cifar10", root=tmp_path)
    assert not Path("touched-by-a-pickle").exists()


def test_a_wrong_class_count_and_labels_that_do_not_fit_are_refused(write, tmp_path):
    files = cifar.SETS["cifar10"]
    folder = write("cifar10", data_batch_5=pickled({"data": pixels(20, 0), files.labels: [0] * 19}))
    with pytest.raises(ValueError, match="found 100 images and 99 labels"):
        load("cifar10", root=folder)


def test_class_names_that_no_label_fits_are_refused(write, tmp_path):
    write("cifar100", train=batch(cifar.SETS["cifar100"], 20, 0, classes=9))
    with pytest.raises(ValueError, match="Class 9 has 0 images in `train_labels`"):
        load("cifar100", root=tmp_path)


def test_the_names_are_known():
    for name in ("cifar10", "cifar100", "imagenet_lt", "inaturalist2018", "isic2019", "folder:x"):
        check_data_name(name)
    with pytest.raises(ValueError, match="Did you mean `cifar100`"):
        check_data_name("cifar-100")


# ---------------------------------------------------------------- the published subsets


def shuffled_first(labels, counts):
    """The published draw again, by Fisher and Yates on the raw 32-bit words of the Mersenne twister."""
    words = np.random.MT19937()
    words._legacy_seeding(0)

    def below(limit):  # the legacy generator's masked rejection
        mask = (1 << int(limit).bit_length()) - 1
        while True:
            value = int(words.random_raw()) & mask
            if value <= limit:
                return value

    kept = []
    for c, n in enumerate(counts):
        members = [i for i, label in enumerate(labels) if label == c]
        for i in range(len(members) - 1, 0, -1):
            j = below(i)
            members[i], members[j] = members[j], members[i]
        kept += members[:n]
    return sorted(kept)


@pytest.mark.parametrize(("name", "classes", "largest"), [("cifar10", 10, 5000), ("cifar100", 100, 500)])
def test_the_published_subsets_by_a_second_implementation_and_by_hash(name, classes, largest):
    fact = FACTS[name]
    labels = np.arange(50_000) * 7 % classes  # as many a class as CIFAR has
    counts = exponential_counts(largest, 100, classes)
    base = source_from_arrays(name, np.zeros((50_000, 1, 1), np.uint8), labels)
    cut = long_tail(base, counts, seed=0, draw="cao2019")
    assert len(cut.train) == fact["images"] == int(counts.sum())
    assert cut.train.index.tolist() == shuffled_first(labels.tolist(), counts.tolist())
    assert hashlib.sha256(cut.train.index.numpy().astype("<i8").tobytes()).hexdigest() == fact["sha256"]
