"""What a look at a reader's own data finds, against what was planted in it."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trees import picture, truncate

from lt_lib.data import inspection as module
from lt_lib.data import load, source_from_arrays
from lt_lib.data.inspection import inspect
from lt_lib.data.partition import partition

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book"))
from planted import planted_folder


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return planted_folder(tmp_path_factory.mktemp("data") / "planted")


@pytest.fixture(scope="module")
def found(planted):
    return inspect(f"folder:{planted.folder}", size=16)


def names(groups):
    return {frozenset(one.name for one in group) for group in groups}


def test_everything_planted_is_found_and_nothing_else(planted, found):
    assert dict(zip(found.class_names, found.counts["train"].tolist(), strict=True)) == planted.counts
    assert sorted(one.name for one in found.unusable) == sorted(planted.unreadable)
    assert names(found.equal) == {frozenset(g) for g in (*planted.copies, *planted.conflicting)}
    assert names(found.conflicting) == {frozenset(g) for g in planted.conflicting}
    assert tuple(one.name for one in found.constant) == planted.constant
    assert [found.class_names[c] for c in found.small_classes] == [planted.single]
    assert (found.leaks, found.torn, list(found.counts)) == ((), {}, ["train"])
    assert found.imbalance.factor == 161
    assert set(found.modes) == {"L", "RGB", "RGBA", "P", "I;16", "CMYK"}
    assert sum(found.modes.values()) == sum(found.sides.values()) == sum(planted.counts.values())


def test_faults_are_told_in_words_without_the_folder(planted, found):
    faults = {one.name: one.fault for one in found.unusable}
    huge, half, empty, page = (faults[name] for name in planted.unreadable)
    assert "more than 67108864 pixels" in huge
    assert "truncated" in half
    assert empty == "it is empty, 0 bytes"
    assert page == "cannot identify image file"
    assert str(planted.folder.parent) not in str(found)


def test_printed_it_is_a_summary_with_a_way_out_for_each_finding(found):
    text = str(found)
    assert text.startswith(
        "folder:planted: 10 classes; usable images: 490 train\n1 to 161 training images a class"
    )
    assert len(found.findings) == 5
    for start in (
        "4 images cannot be used: `three/page.jpg` (cannot identify image file), ",
        "Equal images with several labels in 1 group, such as `three/4.png` (`three`) = `πέντε/τρία.png`",
        "2 images too many, copies of others, such as ",
        "1 image of one colour alone: `छह/खाली.png`.",
        "Fewer than three usable images in 1 class (`nine`): ",
    ):
        assert f"\n- {start}" in text


def test_examples_are_images_of_their_class(planted, found):
    source = load(f"folder:{planted.folder}", size=16, damaged="leave out")
    for c, shown in enumerate(found.examples):
        assert len(shown) == min(4, found.counts["train"][c])
        own = source.train.images[source.train.labels == c]
        assert all(any(torch.equal(one, other) for other in own) for one in shown)


def test_the_planted_folder_is_split_without_its_faults(planted):
    source = load(f"folder:{planted.folder}", size=16, damaged="leave out")
    split = partition(source, test=0.25, calibration=0.15)
    assert dict(zip(source.class_names, source.counts.tolist(), strict=True)) == planted.counts
    assert "too few images, or too few groups of them, to be there too: `nine`" in split.note
    other = planted_folder(planted.folder, seed=1)  # written anew
    assert (other.counts, other.copies) == (planted.counts, planted.copies)
    assert load(f"folder:{planted.folder}", size=16, damaged="leave out").train.fingerprint() != (
        source.train.fingerprint()
    )
    planted_folder(planted.folder)


def test_a_planted_folder_replaces_no_other(tmp_path):
    with pytest.raises(FileExistsError, match="must not exist yet; found another folder"):
        planted_folder(tmp_path)


def test_leaks_uneven_tests_and_absent_classes_are_told(tmp_path):
    for c, n in {"a": 4, "b": 3, "c": 3}.items():
        for i in range(n):
            picture(tmp_path / "train" / c / f"{i}.png", ord(c) + 10 * i, channels=1)
    picture(tmp_path / "test" / "a" / "0.png", 1, channels=1)
    picture(tmp_path / "test" / "b" / "x.png", ord("b") + 10, channels=1)
    with Image.open(
        tmp_path / "test" / "b" / "x.png"
    ) as image:  # the same picture in colour, as another file
        image.convert("RGB").save(tmp_path / "test" / "b" / "y.png")
    found = inspect(f"folder:{tmp_path}", size=8)
    assert names(found.leaks) == {frozenset({"train/b/1.png", "test/b/x.png", "test/b/y.png"})}
    assert {part: counts.tolist() for part, counts in found.counts.items()} == {
        "train": [4, 3, 3],
        "test": [1, 2, 0],
    }
    text = str(found)
    assert "such as `train/b/1.png` = `test/b/x.png`: what was learned is tested" in text
    assert "The test part is uneven too, 1 to 2 images a class: plain accuracy" in text
    assert "No test image in 1 class (`c`)" in text
    assert "copies" not in text.replace("training copies", "")
    truncate(tmp_path / "train" / "a" / "0.png")
    for i in range(3):
        truncate(tmp_path / "train" / "c" / f"{i}.png")
    found = inspect(f"folder:{tmp_path}", size=8)
    assert (found.imbalance, found.counts["train"].tolist()) == (None, [3, 3, 0])
    assert "No usable training image in 1 class (`c`)" in str(found)
    assert [one.part for one in found.unusable] == ["train"] * 4


def test_groups_torn_by_a_list_are_told(tmp_path):
    rows = []
    for i, (part, group) in enumerate([("train", "p"), ("train", "q"), ("test", "q"), ("test", "")]):
        picture(tmp_path / f"{i}.png", i)
        rows.append(f"{i}.png,{'ab'[i % 2]},{group},{part}")
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group,split", *rows]))
    found = inspect("csv:list.csv", root=tmp_path, size=8)
    assert found.torn == {"train, test": 1}
    assert "Groups with images in two parts (train, test): 1, so" in str(found)


def test_an_archive_with_nan_and_constant_images(tmp_path):
    images = np.random.default_rng(0).random((9, 4, 5)).astype(np.float32)
    images[2, 1, 1], images[4], images[6] = np.nan, 0.5, images[0]
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=np.arange(9) % 3)
    found = inspect("npz:a.npz", root=tmp_path)
    assert [(one.name, one.label, one.fault) for one in found.unusable] == [
        ("train image 2", 2, "NaN or infinite pixels")
    ]
    assert [one.name for one in found.constant] == ["train image 4"]
    assert found.counts["train"].tolist() == [3, 3, 2]
    assert (found.sides, found.modes) == ({(5, 4): 8}, {"float32": 8})
    assert len(found.equal) == 1


def test_a_loaded_source_a_single_class_and_progress():
    images = np.arange(5 * 9, dtype=np.uint8).reshape(5, 3, 3)
    told = []
    found = inspect(source_from_arrays("mine", images, np.zeros(5, int)), progress=lambda *n: told.append(n))
    assert "There is one class, `0`, so nothing to tell apart" in str(found)
    assert told == [(5, 5)]
    with pytest.raises(ValueError, match=r"`digit_pairs` is composed when it is split; .* Inspect `digits`"):
        inspect("digit_pairs")
    assert inspect("digits", examples=1).counts["train"].sum() == 1797


def test_names_that_hide_what_they_are_and_turned_images_are_told(tmp_path):
    for i, name in enumerate(("Cat", "cat ", "dog", "01", "1", os.fsdecode(b"caf\xe9"), "a\nb")):
        picture(tmp_path / "x" / name / f"{i}.png", seed=i)
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.effect_noise((9, 9), 50).convert("RGB").save(tmp_path / "x" / "dog" / "t\ru.jpg", exif=exif)
    found = inspect(f"folder:{tmp_path / 'x'}", size=8)
    assert found.alike == (("01", "1"), ("Cat", "cat "))
    assert found.class_names == ("01", "1", "a\\nb", "caf\\xe9", "Cat", "cat ", "dog")
    text = str(found)
    assert "leading zeros alone: `01` and `1`, `Cat` and `cat `. If they mean" in text
    assert (
        "1 image that viewers show turned or mirrored, by EXIF data .*: `dog/t\\ru.jpg`".replace(
            ".*", "that are not heeded here"
        )
        in text
    )
    assert text.encode()  # fit for any screen and file


def test_examples_keep_to_their_memory(monkeypatch):
    source = source_from_arrays("mine", np.zeros((40, 4, 4), np.uint8), np.arange(40) % 10)
    monkeypatch.setattr(module, "_EXAMPLE_BYTES", 16 * 13)
    shown = [len(one) for one in inspect(source).examples]
    assert sum(shown) <= 13
    assert min(shown) == 1
