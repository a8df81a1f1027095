"""The `npz:` source: a reader's own archive, kept as it is or refused in one sentence."""

import io
import re
import zipfile

import numpy as np
import pytest

from lt_lib.data import load, split


def arrays(**more):
    rng = np.random.default_rng(0)
    base = {
        "train_images": rng.integers(0, 256, (12, 5, 5, 3), dtype=np.uint8),
        "train_labels": np.arange(12) % 3,
    }
    return {name: value for name, value in {**base, **more}.items() if value is not None}


def save(folder, **more):
    path = folder / "my.npz"
    np.savez(path, **arrays(**more))
    return f"npz:{path}"


def test_an_archive_without_a_test_part_is_split_and_says_so(tmp_path):
    source = load(save(tmp_path))
    assert (source.name, source.classes, source.test) == ("npz:my.npz", 3, None)
    np.testing.assert_array_equal(source.train.images.permute(0, 2, 3, 1), arrays()["train_images"])
    parts = split(source)
    assert "stratified share of 0.25" in parts.note
    assert parts.test.counts(3).tolist() == [1, 1, 1]


def test_a_whole_archive(tmp_path):
    test = np.zeros((3, 5, 5, 3), np.uint8)
    names = np.array(["cat", "dog", "emu"])
    source = load(save(tmp_path, test_images=test, test_labels=np.arange(3), class_names=names))
    assert source.class_names == ("cat", "dog", "emu")
    assert split(source).test is source.test


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_labels_of_any_whole_type_are_read(tmp_path, dtype):
    assert load(save(tmp_path, train_labels=(np.arange(12) % 3).astype(dtype))).counts.tolist() == [4, 4, 4]


def test_a_relative_file_is_taken_from_root(tmp_path):
    save(tmp_path)
    assert len(load("npz:my.npz", root=tmp_path).train) == 12


def test_a_relative_file_is_taken_from_the_current_folder_then_from_the_project(tmp_path, monkeypatch):
    here, project = tmp_path / "here", tmp_path / "project"
    for folder in (here, project / "data"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("LT_HOME", str(project))
    monkeypatch.chdir(here)
    save(project)
    save(project / "data")
    assert len(load("npz:my.npz").train) == len(load("npz:my.npz", root="data").train) == 12
    np.savez(here / "my.npz", train_images=np.zeros((2, 5, 5), np.uint8), train_labels=[0, 1])
    assert len(load("npz:my.npz").train) == 2
    assert len(load("npz:my.npz", root="data").train) == 12
    with pytest.raises(FileNotFoundError) as error:
        load("npz:no.npz")
    assert f"found none at `{here / 'no.npz'}` or `{project / 'no.npz'}`" in str(error.value)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"train_images": None},
            r"must hold `train_images` and `train_labels`; `train_images` is missing \(found",
        ),
        ({"train_labels": None}, r"`train_labels` is missing"),
        ({"test_image": np.zeros(3)}, r"may hold only .*; found `test_image`\. Did you mean `test_images`\?"),
        ({"images": np.zeros(3)}, r"found `images`\. Did you mean `train_images`\?"),
        ({"y": np.zeros(3)}, r"found `y`\. Did you mean `train_labels`\?"),
        ({"zzz": np.zeros(3)}, r"found `zzz`\. Leave it out"),
        ({"test_labels": np.arange(3)}, r"`test_labels` came without `test_images`"),
        ({"class_names": np.array(["a", "b"])}, r"`train_labels` must be 0\.\.1.*found 2 \(4 times\)"),
        (
            {"class_names": np.arange(3)},
            r"`class_names` must be a one-dimensional array of strings; found .*int64",
        ),
        (
            {"class_names": np.array([["a", "b", "c"]])},
            r"`class_names` must be a one-dimensional array of strings",
        ),
        (
            {"class_names": np.array(["a", "b", "c"], dtype=object)},
            r"found an array of Python objects.*dtype=str",
        ),
        ({"train_images": np.array([{}] * 12, dtype=object)}, r"found an array of Python objects"),
        ({"train_labels": np.arange(12) % 3 + 1}, r"`train_labels` must count from 0; found labels 1\.\.3"),
        ({"train_labels": np.arange(12) % 3 * 2}, r"Class 1 has 0 images in `train_labels`"),
        ({"train_labels": np.arange(11) % 3}, r"equally long; found 12 images and 11 labels"),
        ({"train_images": np.full((12, 5, 5), np.nan)}, r"`train_images` must be finite; found 300 NaN"),
        (
            {"train_images": np.full((12, 5, 5), 2.0)},
            r"`train_images` of floats must lie in 0\.\.1; found 2\.\.2",
        ),
        ({"train_images": np.zeros((12, 75), np.uint8)}, r"`train_images` must be \(n, H, W\)"),
    ],
)
def test_a_malformed_archive_is_refused(tmp_path, more, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        load(save(tmp_path, **more))
    assert error.type is ValueError  # a traceback names no private class


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`npz:no\.npz` must name an existing file; found none at"):
        load("npz:no.npz", root=tmp_path)


@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "overwritten", "bare array", "pickle"])
def test_what_is_no_archive_is_refused(tmp_path, kind):
    name = save(tmp_path)
    path = tmp_path / "my.npz"
    whole = path.read_bytes()
    if kind == "bare array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes(
            {
                "text": b"label,image\n",
                "empty": b"",
                "truncated": whole[: len(whole) // 2],
                "overwritten": whole[:300] + bytes(200) + whole[500:],
                "pickle": b"\x80\x04}\x94.",
            }[kind]
        )
    with pytest.raises(
        ValueError, match=r"`my\.npz` must be an `\.npz` archive of plain arrays; found .*np\.savez"
    ):
        load(name)


def locked(content):
    """The archive with the marks of encryption on every member."""
    flags = bytearray(content)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(signature), content):
            flags[found.start() + offset] |= 1
    return bytes(flags)


def test_archives_that_decoders_choke_on_are_one_sentence(tmp_path):
    name, path = save(tmp_path), tmp_path / "my.npz"
    path.write_bytes(locked(path.read_bytes()))
    with pytest.raises(ValueError, match=r"must be an .* found none that can be read \(.* is encrypted"):
        load(name)
    header = b"(" * 500 + b"\n"
    for method, content, reason in (
        (zipfile.ZIP_LZMA, None, "Corrupt input data"),
        (zipfile.ZIP_STORED, b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header, ""),
        (zipfile.ZIP_STORED, member((10**30, 0)), "too large"),
    ):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("train_images.npy", content or bytes(range(256)) * 9)
        if content is None:
            damaged = bytearray(path.read_bytes())
            damaged[60:90] = b"\xff" * 30
            path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"must be an .* found none that can be read \(.*{reason}"):
            load(name)


def test_what_numpy_says_of_pickles_is_not_passed_on(tmp_path):
    (tmp_path / "my.npz").write_bytes(b"label,image\n")
    with pytest.raises(
        ValueError, match="found no archive at all, or pickled objects, which are never"
    ) as error:
        load(f"npz:{tmp_path / 'my.npz'}")
    assert "allow_pickle" not in str(error.value)


@pytest.mark.parametrize("shape", [(2**30, 2**14, 2**14), (2**62, 8, 8)])
def test_a_header_that_claims_more_than_memory_holds_is_refused(tmp_path, shape):
    name = save(tmp_path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "my.npz", "w") as archive:
        archive.writestr("train_images.npy", header.getvalue() + bytes(100))
    with pytest.raises(
        ValueError, match=r"`my\.npz` must be an `\.npz` archive of plain arrays; found an archive bomb"
    ):
        load(name)


def member(shape, content=b"", descr="|u1"):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue() + content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train_images", member((2**29,), bytes(2**20))),  # claims 512 MiB, which memory would hold
        ("class_names", member((2**10,), b"", "<U1000000")),
        ("train_images", member((4,), bytes(2**28 + 2**20))),  # holds 1,000 times its packed bytes
    ],
)
def test_an_archive_bomb_is_refused_before_it_is_unpacked(tmp_path, name, content, monkeypatch):
    save(tmp_path)
    with zipfile.ZipFile(tmp_path / "my.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", content)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(
        ValueError, match=rf"found an archive bomb, `{name}` of .* GiB in \d+ bytes of file\."
    ):
        load(f"npz:{tmp_path / 'my.npz'}")


def test_images_with_nan_are_left_out_on_request(tmp_path):
    images = np.random.default_rng(0).random((12, 4, 4))
    images[5, 1, 1], images[7] = np.nan, np.inf
    name = save(tmp_path, train_images=images)
    with pytest.raises(
        ValueError, match=r"found 17 NaN or infinite pixels in 2 images, the first in image 5"
    ):
        load(name)
    source = load(name, damaged="leave out")
    assert source.counts.tolist() == [4, 3, 3]
    assert source.train.index.tolist() == [0, 1, 2, 3, 4, 6, 8, 9, 10, 11]
    assert "2 train images left out: NaN or infinite pixels, the first in image 5." in source.note
    images[2::3] = np.nan
    with pytest.raises(ValueError, match=r"Class 2 must have an image without NaN .*; found 4 with them"):
        load(save(tmp_path, train_images=images), damaged="leave out")
    with pytest.raises(ValueError, match="`damaged` must be one of leave out, refuse; found `skip`"):
        load(name, damaged="skip")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (
            np.array(list("abcabcabcabc")),
            r"found names such as `a`\. Pass .*return_inverse=True.*class_names",
        ),
        (np.arange(12) % 3 / 2, r"found 0\.5, which is not whole"),
        (
            (np.arange(12) % 3).astype(float),
            r"found whole numbers stored as float64\. Pass .*astype\(np.int64",
        ),
        (np.array([0, 1, np.nan] * 4), "found nan"),
        (np.arange(12) % 3 - 1, r"class numbers from 0; found -1 \(4 times\)\. Renumber"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused_with_a_way_out(tmp_path, labels, sentence):
    with pytest.raises(ValueError, match=f"`train_labels` must .*{sentence}"):
        load(save(tmp_path, train_labels=labels))


def test_nothing_is_ever_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    name = save(tmp_path, class_names=np.array([Trap()] * 3, dtype=object))
    with pytest.raises(ValueError, match="an array of Python objects"):
        load(name)
