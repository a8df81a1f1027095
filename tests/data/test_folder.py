"""A reader's own folder of images: what is taken, in which order, and what is refused."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from trees import picture, truncate

from lt_lib.data import ImageFiles, imbalance_statistics, load, normalisation, split
from lt_lib.data.folder import natural


def tree(folder, counts, start=0, suffix=".png", **options):
    for c, (name, n) in enumerate(counts.items()):
        for i in range(n):
            picture(folder / name / f"{i}{suffix}", start + 100 * c + i, **options)
    return folder


def test_one_sub_folder_a_class_in_natural_order(tmp_path):
    tree(tmp_path, {"class 10": 3, "class 2": 12, "Class 1": 2, "Ωmega": 1, "猫": 1, "قط": 1})
    source = load(f"folder:{tmp_path}")
    assert source.class_names == ("Class 1", "class 2", "class 10", "Ωmega", "قط", "猫")
    assert source.counts.tolist() == [2, 12, 3, 1, 1, 1]
    assert (source.name, source.test) == (f"folder:{tmp_path.name}", None)
    assert source.train.images.shape == (20, 3, 64, 64)
    assert imbalance_statistics(source.counts).factor == 12
    small = load(f"folder:{tmp_path}", size=10).train.images
    for i in range(12):  # 10 follows 9, not 1
        with Image.open(tmp_path / "class 2" / f"{i}.png") as image:
            np.testing.assert_array_equal(small[2 + i].permute(1, 2, 0), np.asarray(image)[:, 1:11])


def test_a_pair_of_trees_is_train_and_test(tmp_path):
    tree(tmp_path / "train", {"a": 4, "b": 2})
    tree(tmp_path / "test", {"b": 3}, start=1000)
    source = load(f"folder:{tmp_path}", size=8)
    assert (source.class_names, source.counts.tolist()) == (("a", "b"), [4, 2])
    assert source.test.counts(2).tolist() == [0, 3]
    assert split(source).test is source.test
    tree(tmp_path / "test", {"c": 1})
    with pytest.raises(ValueError, match=r"must hold classes of `train` only; found `c`"):
        load(f"folder:{tmp_path}")


def test_classes_that_are_called_train_and_test_are_classes(tmp_path):
    assert load(f"folder:{tree(tmp_path, {'train': 2, 'test': 3})}").counts.tolist() == [3, 2]


def test_hidden_files_are_skipped_and_others_are_told(tmp_path):
    tree(tmp_path, {"a": 2, "b": 2})
    for name in (
        ".DS_Store",
        "a/.hidden.png",
        "a/notes.txt",
        "a/list.csv",
        "b/Thumbs.db",
        "b/x",
        "readme.md",
    ):
        (tmp_path / name).write_text("no image")
    (tmp_path / ".git").mkdir()
    source = load(f"folder:{tmp_path}")
    assert len(source.train) == 4
    assert (
        "Left out: `a/list.csv`, `a/notes.txt`, `b/Thumbs.db` and 2 more, no images within a class."
        in source.note
    )
    assert "Left out" not in load(f"folder:{tree(tmp_path / 'c', {'a': 1})}").note


def test_dead_links_and_pipes_are_left_out_and_unreadable_folders_told(tmp_path, monkeypatch):
    tree(tmp_path, {"a": 2, "b": 2})
    for name in ("a/dead.png", "b/dead.png"):
        (tmp_path / name).symlink_to("nowhere.png")
    source = load(f"folder:{tmp_path}")
    assert len(source.train) == 4
    assert "Left out: `a/dead.png`, `b/dead.png`, no images within a class." in source.note

    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(
        ValueError, match=r"The folder `.*` must be readable; .*\(Permission denied\)\. Change"
    ):
        load(f"folder:{tmp_path}")


def test_gray_files_alone_give_one_channel(tmp_path):
    tree(tmp_path, {"a": 2, "b": 1}, channels=1)
    Image.fromarray(np.full((9, 9), 30_000, np.uint16)).save(tmp_path / "b" / "deep.png")
    source = load(f"folder:{tmp_path}", size=9)
    assert source.train.images.shape == (4, 1, 9, 9)
    assert int(source.train.images[3].unique()) == round(30_000 / 257)
    picture(tmp_path / "b" / "colour.jpg")
    both = load(f"folder:{tmp_path}", size=9).train.images
    assert both.shape == (5, 3, 9, 9)
    assert torch.equal(both[0], source.train.images[0].expand(3, 9, 9))


def test_kinds_and_sizes_may_be_mixed(tmp_path):
    for i, suffix in enumerate([".png", ".JPG", ".jpeg", ".bmp", ".tif", ".webp", ".gif"]):
        picture(tmp_path / "a" / f"{i}{suffix}", i, height=5 + 3 * i, width=40 - 4 * i)
    source = load(f"folder:{tmp_path}", size=16)
    assert source.train.images.shape == (7, 3, 16, 16)
    assert normalisation(source.train)[0].shape == (3,)


def test_a_relative_folder_is_taken_from_root_the_current_folder_or_the_project(tmp_path, monkeypatch):
    project = tree(tmp_path / "project" / "mine", {"a": 1}).parent
    monkeypatch.setenv("LT_HOME", str(project))
    monkeypatch.chdir(tmp_path)
    assert len(load("folder:mine").train) == len(load("folder:mine", root=project).train) == 1
    tree(tmp_path / "mine", {"a": 2})
    assert len(load("folder:mine").train) == 2
    with pytest.raises(FileNotFoundError, match=r"`folder:other` must name an existing folder; found none"):
        load("folder:other")


def test_what_is_no_such_tree_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must hold one sub-folder a class; found none. Make one"):
        load(f"folder:{tmp_path}")
    picture(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"must hold one sub-folder a class; found none"):
        load(f"folder:{tmp_path}")
    tree(tmp_path / "train", {"a": 2})
    tree(tmp_path / "val", {"a": 2})
    with pytest.raises(
        ValueError, match=r"train` must hold the images of one class; found the folder `a` in it"
    ):
        load(f"folder:{tmp_path}")


def test_a_class_without_an_image_is_named(tmp_path):
    tree(tmp_path, {"a": 2, "b": 1})
    (tmp_path / "b" / "0.png").rename(tmp_path / "b" / "0.txt")
    with pytest.raises(ValueError, match=r"/b` must hold at least one image \(\.bmp, .*; found none"):
        load(f"folder:{tmp_path}")


def test_one_name_in_two_unicode_forms_is_refused(tmp_path):
    tree(tmp_path, {"caf\u00e9": 1, "cafe\u0301": 1})
    with pytest.raises(ValueError, match="`class_names` must all differ; found `caf\u00e9` twice"):
        load(f"folder:{tmp_path}")


def test_a_damaged_image_is_named(tmp_path):
    tree(tmp_path, {"a": 2, "b": 2})
    truncate(tmp_path / "b" / "1.png")
    with pytest.raises(ValueError, match=r"`b/1\.png` in .* must be a whole image file"):
        load(f"folder:{tmp_path}")
    parts = split(load(f"folder:{tmp_path}", memory_limit=0), test=1)
    with pytest.raises(ValueError, match=r"`b/1\.png` in"):
        [part.images[:] for part in parts.parts().values()]
    (tmp_path / "a" / "0.png").write_text("no image")
    with pytest.raises(ValueError, match=r"a/0\.png` must be an image file; found one that cannot be opened"):
        load(f"folder:{tmp_path}")


def test_size_and_limit_are_for_files_alone():
    for name in ("digits", "cifar10", "npz:x"):
        with pytest.raises(
            ValueError, match=r"`size` is for image files \(csv, folder, .*; found 32 for `.*Leave it out"
        ):
            load(name, size=32)
        with pytest.raises(ValueError, match=r"`memory_limit` is for image files"):
            load(name, memory_limit=1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20, unique=True), st.text(max_size=4))
def test_numbers_in_names_are_compared_as_numbers(numbers, prefix):
    if prefix[-1:].isdecimal():
        prefix += "-"
    names = [f"{prefix}{n}.png" for n in numbers]
    random.Random(0).shuffle(names)
    assert sorted(names, key=natural) == [f"{prefix}{n}.png" for n in sorted(numbers)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=8), unique=True, max_size=8), st.randoms())
def test_natural_order_is_a_total_order_of_any_names(names, random):
    shuffled = random.sample(names, len(names))
    assert sorted(names, key=natural) == sorted(shuffled, key=natural)


def test_a_class_may_be_called_by_a_ratio_but_not_like_a_drive(tmp_path):
    source = load(f"folder:{tree(tmp_path / 'a', {'3:4': 1, '16:9': 2})}", size=4)
    assert source.class_names == ("3:4", "16:9")
    with pytest.raises(ValueError, match=r"without a drive such as `C:`; found `C:/.*or rename the file"):
        load(f"folder:{tree(tmp_path / 'b', {'C:': 1, 'D': 2})}", size=4)


def test_damaged_files_are_left_out_on_request(tmp_path):
    tree(tmp_path, {"a": 4, "b": 2}, channels=1)
    truncate(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "2.png").write_bytes(b"")
    for limit in (None, 0):
        source = load(f"folder:{tmp_path}", size=8, damaged="leave out", memory_limit=limit)
        assert (source.counts.tolist(), source.train.index.tolist()) == ([2, 2], [0, 3, 4, 5])
        assert source.train.images.shape == (4, 1, 8, 8)
        assert "Left out, since no whole image can be decoded from it: `a/1.png`, `a/2.png`." in source.note
        assert torch.equal(source.train.in_memory()[1], ImageFiles(tmp_path, ["a/3.png"], 8, 1)[0])
    for i in range(2):
        truncate(tmp_path / "b" / f"{i}.png")
    with pytest.raises(ValueError, match=r"Class `b` of .* found none, the first file being `b/0\.png`"):
        load(f"folder:{tmp_path}", damaged="leave out")
