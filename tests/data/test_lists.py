"""ImageNet-LT and iNaturalist 2018 from small trees with lists in the official layout."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Resize
from trees import picture, truncate

from lt_lib.data import ImageFiles, lists, load, split

FACTS = json.loads((Path(__file__).parents[1] / "facts" / "longtail_class_counts.json").read_text())
COUNTS = (5, 3, 2)
WORDNET = ("n01440764", "n01443537", "n01484850")


def lines_of(part, per_class):
    """`train/n01440764/n01440764_0.JPEG 0` and so on."""
    return [
        f"{part}/{WORDNET[c]}/{WORDNET[c]}_{part}{i}.JPEG {c}"
        for c, n in enumerate(per_class)
        for i in range(n)
    ]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that writes images and lists and makes their sizes the published ones."""

    def build(name="imagenet_lt", lists_in="", images_in="", train=None, test=None):
        published = lists.SETS[name]
        contents = {"train": lines_of("train", COUNTS), "test": lines_of("val", (2, 2, 2))}
        for seed, line in enumerate(contents["train"] + contents["test"]):
            picture((tmp_path / images_in / line.rsplit(" ", 1)[0]).with_suffix(".jpg"), seed)
            path = tmp_path / images_in / line.rsplit(" ", 1)[0]
            path.with_suffix(".jpg").rename(path)
        contents["train"] = contents["train"] if train is None else train(contents["train"])
        contents["test"] = contents["test"] if test is None else test(contents["test"])
        (tmp_path / lists_in).mkdir(parents=True, exist_ok=True)
        for file, lines in zip(published.lists, contents.values(), strict=True):
            (tmp_path / lists_in / file).write_text("\n".join(lines) + "\n")
        monkeypatch.setitem(lists.SETS, name, replace(published, lines=(10, 6), classes=3))
        return tmp_path

    return build


@pytest.mark.parametrize("name", ["imagenet_lt", "inaturalist2018"])
def test_images_labels_and_names_are_those_of_the_lists(write, name):
    root = write(name)
    source = load(name, root=root, size=7)
    assert source.counts.tolist() == list(COUNTS)
    assert source.test.counts(3).tolist() == [2, 2, 2]
    assert source.class_names == WORDNET
    assert "by its published lists. Shorter side resized to 8, centre 7 x 7; decoded." in source.note
    image = Image.open(root / lines_of("train", COUNTS)[6].split()[0])
    expected = np.array(CenterCrop(7)(Resize(8)(image)))
    np.testing.assert_array_equal(source.train.images[6].permute(1, 2, 0), expected)
    assert load(name, root=root).train.images.shape == (10, 3, 224, 224)
    assert source.train.groups is None


def test_images_larger_than_the_limit_stay_on_disk(write):
    root = write()
    in_memory = load("imagenet_lt", root=root, size=8, memory_limit=16 * 3 * 8 * 8)
    on_disk = load("imagenet_lt", root=root, size=8, memory_limit=16 * 3 * 8 * 8 - 1)
    assert isinstance(in_memory.train.images, torch.Tensor)
    for ours, theirs in ((on_disk.train, in_memory.train), (on_disk.test, in_memory.test)):
        assert isinstance(ours.images, ImageFiles)
        assert torch.equal(ours.images[:], theirs.images)
    assert on_disk.note.endswith("left on disk, since they take more memory decoded than `memory_limit`.")
    parts = split(on_disk, calibration=1, seed=0)
    same = split(in_memory, calibration=1, seed=0)
    assert torch.equal(parts.calibration.images[:], same.calibration.images)
    assert parts.fingerprint() != same.fingerprint()


@pytest.mark.parametrize("limit", [-1, 1.5, True])
def test_a_bad_limit_is_refused(write, limit):
    with pytest.raises(ValueError, match=r"`memory_limit` must be a whole number of bytes"):
        load("imagenet_lt", root=write(), memory_limit=limit)


@pytest.mark.parametrize(("lists_in", "images_in"), [("data_txt", ""), ("ImageNet_LT", "ImageNet"), ("", "")])
def test_lists_and_images_are_found_below_the_root(write, monkeypatch, lists_in, images_in):
    monkeypatch.setenv("LT_DATA", str(write(lists_in=lists_in, images_in=images_in)))
    assert load("imagenet_lt", size=8).counts.tolist() == list(COUNTS)


def test_classes_without_a_folder_of_their_own_are_called_by_number(write):
    moved = lines_of("train", COUNTS)
    moved = [line.replace(f"/{WORDNET[1]}/", f"/{WORDNET[0]}/") for line in moved[:8]] + moved[8:]
    root = write(train=lambda _: moved)
    for seed, line in enumerate(moved):
        path = root / line.split()[0]
        picture(path.with_suffix(".png"), seed).rename(path)
    assert load("imagenet_lt", root=root, size=8).class_names == ("0", "1", "2")


def test_missing_files_say_what_to_get_and_where_to_put_it(write, tmp_path, monkeypatch):
    monkeypatch.delenv("LT_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError, match=r"iNaturalist 2018 must lie in .*Get the lists from https.*`root`"
    ):
        load("inaturalist2018", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"looked into no folder, since none was named"):
        load("imagenet_lt")
    root = write()
    (root / "ImageNet_LT_test.txt").rename(root / "elsewhere.txt")
    with pytest.raises(
        FileNotFoundError, match=r"must hold `ImageNet_LT_test\.txt` of ImageNet-LT; it is missing"
    ):
        load("imagenet_lt", root=root)


def test_an_absent_image_is_named_with_the_way_out(write):
    root = write()
    victim = lines_of("train", COUNTS)[4].split()[0]
    (root / victim).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"must hold the image `{victim}`; it is absent \(1 of 10 are\)"
    ):
        load("imagenet_lt", root=root)


def test_without_any_image_the_folder_is_asked_for(write):
    root = write(lists_in="data_txt")
    (root / "train").rename(root / "training")
    with pytest.raises(FileNotFoundError, match=r"The image folder of ImageNet-LT must lie .*image-net.org"):
        load("imagenet_lt", root=root)


def test_a_truncated_image_is_named_at_once_or_when_it_is_read(write):
    root = write()
    victim = lines_of("val", (2, 2, 2))[3].split()[0]
    truncate(root / victim)
    sentence = rf"`{victim}` in `.*` must be a whole image file"
    with pytest.raises(ValueError, match=sentence):
        load("imagenet_lt", root=root, size=8)
    on_disk = load("imagenet_lt", root=root, size=8, memory_limit=0)
    on_disk.test.images[:3]
    with pytest.raises(ValueError, match=sentence):
        on_disk.test.images[:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: lines[:-1], r"must list 10 images of 3 classes 0\.\.2; found 9 images of 3 classes"),
        (lambda lines: [], "must list 10 images of 3 classes 0..2; found 0 images of 0 classes. Fetch"),
        (
            lambda lines: [line.replace(" 2", " 1") for line in lines],
            "found 10 images of 2 classes, the last 1",
        ),
        (
            lambda lines: [line.replace(" 2", " 3") for line in lines],
            "found 10 images of 3 classes, the last 3",
        ),
        (
            lambda lines: [*lines[:3], "a.JPEG", *lines[4:]],
            "Line 4 of `.*` must be `path label`; found `a.JPEG`",
        ),
        (lambda lines: [*lines[:3], "a.JPEG -1", *lines[4:]], "Line 4 of `.*` must be `path label`"),
        (lambda lines: [*lines[:3], "a.JPEG 1.0", *lines[4:]], "Line 4 of `.*` must be `path label`"),
        (lambda lines: [*lines[:9], "../x.JPEG 2"], r"Line 10 of `.*` must name a file .* without `\.\.`"),
        (lambda lines: [*lines[:9], "/etc/x.JPEG 2"], "Line 10 of `.*` must name a file .* `/etc/x.JPEG`"),
        (
            lambda lines: [lines[0], lines[0], *lines[2:]],
            "must name an image once; found `train/.*0.JPEG` twice",
        ),
        (lambda lines: [lines[0], "./" + lines[0], *lines[2:]], "found `train/.*0.JPEG` twice"),
        (lambda lines: [*lines[:9], lines_of("val", (1,))[0][:-1] + "2"], "found `val/.*` twice"),
        (
            lambda lines: [*lines[:9], lines_of("val", (1,))[0][:-1].replace("/", "//") + "2"],
            "found `val/n.*` twice",
        ),
    ],
)
def test_a_list_that_is_not_the_published_one_is_refused(write, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        load("imagenet_lt", root=write(train=change), size=8)


def test_a_list_that_is_no_text_is_refused(write):
    root = write()
    (root / "ImageNet_LT_train.txt").write_bytes(b"train/a.JPEG \xff\n")
    with pytest.raises(ValueError, match=r"must be a text in UTF-8; found the byte 0xff at 13"):
        load("imagenet_lt", root=root)


def test_blank_lines_tabs_and_spaces_in_paths_are_read(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("a b/c.jpg 0\n\nd.jpg\t1\n")
    names, labels = lists._read(path, 2, 2)
    assert (names, labels.tolist()) == (["a b/c.jpg", "d.jpg"], [0, 1])


def test_the_published_sizes_are_those_of_the_known_counts():
    counts = FACTS["ImageNet_LT"]
    assert (len(counts), sum(counts)) == (
        lists.SETS["imagenet_lt"].classes,
        lists.SETS["imagenet_lt"].lines[0],
    )
    assert (min(counts), max(counts), len(Counter(counts)) > 100) == (5, 1280, True)
