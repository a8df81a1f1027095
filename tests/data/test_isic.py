"""ISIC 2019 from a small tree in the official layout, and splits that keep lesions together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import picture, truncate

from lt_lib.data import ImageFiles, Part, Source, isic, load, long_tail, split

HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
# three images of each class (the last with one more): two of one lesion, one without a lesion id
COUNTS = dict.fromkeys(isic.COUNTS, 3) | {"SCC": 4}


def rows():
    """Lines of the two tables."""
    labels, metadata, number = [], [], 0
    for c, (_, n) in enumerate(COUNTS.items()):
        for i in range(n):
            name = f"ISIC_{number:07d}" + ("_downsampled" if i == 0 else "")
            labels.append(f"{name}," + ",".join("1.0" if k == c else "0.0" for k in range(9)))
            metadata.append(f"{name},55.0,anterior torso,{f'HAM_{c:07d}' if i < 2 else ''},female")
            number += 1
    return labels, metadata


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that writes images and tables and makes their counts the published ones."""

    def build(labels=None, metadata=None, images_in="ISIC_2019_Training_Input"):
        own_labels, own_metadata = rows()
        for seed, line in enumerate(own_labels):
            picture(tmp_path / images_in / f"{line.split(',')[0]}.jpg", seed)
        head = {"labels": HEADER, "metadata": "image,age_approx,anatom_site_general,lesion_id,sex"}
        told = {
            "labels": own_labels if labels is None else labels(own_labels),
            "metadata": own_metadata if metadata is None else metadata(own_metadata),
        }
        for file, kind in ((isic.LABELS, "labels"), (isic.METADATA, "metadata")):
            (tmp_path / file).write_text("\n".join([head[kind], *told[kind]]) + "\n")
        monkeypatch.setattr(isic, "COUNTS", COUNTS)
        return tmp_path

    return build


@pytest.mark.parametrize("images_in", ["ISIC_2019_Training_Input", "ISIC_2019_Training_Input/" * 2])
def test_images_labels_and_lesions_are_those_of_the_tables(write, images_in):
    source = load("isic2019", root=write(images_in=images_in), size=8)
    assert source.class_names == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert source.counts.tolist() == [3] * 7 + [4]
    assert source.test is None
    assert source.train.groups.tolist()[:6] == [0, 0, 1, 2, 2, 3]
    assert "17 lesions. Shorter side resized to 9, centre 8 x 8; decoded." in source.note
    assert load("isic2019", root=write(), memory_limit=0).train.images.shape == (25, 3, 224, 224)


def test_no_lesion_is_torn_apart(write):
    source = load("isic2019", root=write(), size=8, memory_limit=0)
    for seed in range(5):
        parts = split(source, test=1, seed=seed)
        groups = [set(part.groups.tolist()) for part in parts.parts().values()]
        assert not groups[0] & groups[1]
        assert parts.test.counts(8).tolist() == [1] * 8
        assert isinstance(parts.train.images, ImageFiles)
        assert "Images of one group stay in one part." in parts.note
    assert len({tuple(split(source, test=1, seed=s).test.index.tolist()) for s in range(9)}) > 1


def drop(line, column, value):
    cells = line.split(",")
    cells[column] = value
    return ",".join(cells)


@pytest.mark.parametrize(
    ("labels", "metadata", "sentence"),
    [
        (
            lambda r: [r[0], drop(r[1], 2, "1.0"), *r[2:]],
            None,
            "Line 3 of .* mark exactly one .*; found MEL and NV",
        ),
        (lambda r: [r[0], drop(r[1], 1, "0.0"), *r[2:]], None, "Line 3 of .*; found none for `ISIC_0000001`"),
        (
            lambda r: [drop(drop(r[0], 1, "0"), 9, "1"), *r[1:]],
            None,
            "exactly one of .*SCC with 1; found UNK",
        ),
        (lambda r: [drop(r[0], 2, "0.5"), *r[1:]], None, "Line 2 of .* must hold 0 and 1 alone; found `0.5`"),
        (lambda r: [drop(r[0], 2, ""), *r[1:]], None, "must hold 0 and 1 alone; found ``"),
        (lambda r: [drop(r[0], 2, "nan"), *r[1:]], None, "must hold 0 and 1 alone; found `nan`"),
        (
            lambda r: [r[0] + ",1.0", *r[1:]],
            None,
            "Line 2 of .* must have 10 cells, as the header has; found 11",
        ),
        (
            lambda r: [r[0], r[0], *r[2:]],
            None,
            "Line 3 of .* must name a new image; found `ISIC_0000000_down",
        ),
        (lambda r: r[:-1], None, "must list 4 images of SCC, as published; found 3. Fetch the table again"),
        (lambda r: [], None, "must list 3 images of MEL, as published; found 0"),
        (
            lambda r: ["../" + r[0], *r[1:]],
            None,
            r"Line 2 of .*GroundTruth.csv` must name a file .*`\.\./ISIC",
        ),
        (
            None,
            lambda r: [*r, r[0].replace("HAM_", "BCN_")],
            "Line 27 of .*lesion of its earlier row, `HAM_0",
        ),
        (None, lambda r: [*r, drop(r[0], 3, "NaN")], "Line 27 of .*earlier row, `HAM_0000000`; found `NaN`"),
        (
            None,
            lambda r: r[:4],
            r"must have a row for each image; `ISIC_0000004` has none \(21 of 25 images\)",
        ),
    ],
)
def test_a_wrong_table_is_refused(write, labels, metadata, sentence):
    with pytest.raises(ValueError, match=sentence):
        load("isic2019", root=write(labels, metadata), size=8)


def test_blanks_do_not_count_and_several_words_mean_no_lesion(write):
    words = iter(["NA", "nan", " NULL ", "None", "n/a", "", "Na", "null"])
    root = write(metadata=lambda r: [line if "HAM" in line else drop(line, 3, next(words, "")) for line in r])
    plain = load("isic2019", root=root, size=8)
    for file in (isic.LABELS, isic.METADATA):
        (root / file).write_text((root / file).read_text().replace(",", " , "))
    spaced = load("isic2019", root=root, size=8)
    assert spaced.train.groups.tolist() == plain.train.groups.tolist()
    assert len(plain.train.groups.unique()) == 17
    assert spaced.train.fingerprint() == plain.train.fingerprint()
    (root / isic.METADATA).write_text("image,lesion_id, image\nISIC_0000001,HAM_0,other\n")
    with pytest.raises(ValueError, match="must have one column `image`; found two"):
        load("isic2019", root=root, size=8)


@pytest.mark.parametrize(("file", "column"), [(isic.LABELS, "MEL"), (isic.METADATA, "lesion_id")])
def test_a_missing_column_and_a_missing_file_are_named(write, file, column):
    root = write()
    whole = (root / file).read_text()
    (root / file).write_text(whole.replace(column, "other"))
    with pytest.raises(
        ValueError, match=f"must be a table with the columns image, .*; `{column}` is missing"
    ):
        load("isic2019", root=root)
    (root / file).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"must hold `{file}` of ISIC 2019; it is missing\. Get `ISIC_2019"
    ):
        load("isic2019", root=root)


def test_absent_and_damaged_images_are_named(write, tmp_path):
    root = write()
    images = root / isic.IMAGES
    truncate(images / "ISIC_0000002.jpg")
    with pytest.raises(ValueError, match=r"`ISIC_0000002\.jpg` in .* must be a whole image file"):
        load("isic2019", root=root, size=8)
    (images / "ISIC_0000002.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold the image `ISIC_0000002\.jpg`; it is absent"):
        load("isic2019", root=root, size=8)
    with pytest.raises(FileNotFoundError, match=r"ISIC 2019 must lie in a local folder .*challenge\.isic"):
        load("isic2019", root=tmp_path / "elsewhere")


def test_the_published_counts_add_up():
    assert sum(dict(isic.COUNTS).values()) == 25_331


# ---------------------------------------------------------------- groups in general


def grouped(labels, groups):
    n, images = len(labels), torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    part = Part(images, torch.tensor(labels), torch.arange(n), torch.tensor(groups))
    return Source("toy", part, None, tuple(str(c) for c in range(max(labels) + 1)), "")


@settings(max_examples=50, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), share=st.floats(0.1, 0.4), aside=st.floats(0.1, 0.4))
def test_parts_share_no_group_and_lose_no_image(data, seed, share, aside):
    groups = [[g, g % 3, data.draw(st.integers(1, 3))] for g in range(data.draw(st.integers(15, 40)))]
    labels = np.concatenate([[c] * n for _, c, n in groups]).tolist()
    members = np.concatenate([[g] * n for g, _, n in groups]).tolist()
    # groups of several labels, which stay in the training part
    labels += [0, 1, 2, 2]
    members += [100, 100, 101, 0]
    order = np.random.default_rng(0).permutation(len(labels))
    source = grouped([labels[i] for i in order], [members[i] for i in order])
    try:
        parts = split(source, aside, share, seed)
    except ValueError as error:  # a class of few groups may have none that fits
        assert "groups of images that cannot be torn apart" in str(error)  # noqa: PT017
        return
    every = list(parts.parts().values())
    together = [set(part.groups.tolist()) for part in every]
    assert sum(len(g) for g in together) == len(set(members))
    assert sorted(torch.cat([part.index for part in every]).tolist()) == list(range(len(labels)))
    assert {0, 100} <= together[0]
    for part, wanted in zip(every[1:], (aside, share), strict=True):
        counts = part.counts(3)
        assert int(counts.min()) >= 1
        assert bool((counts <= (source.counts * wanted + 0.5).floor().clamp(min=1)).all())


def test_single_images_as_groups_give_exact_numbers():
    source = grouped([0] * 20 + [1] * 9, list(range(29)))
    parts = split(source, calibration=3, test=2, seed=1)
    assert (parts.calibration.counts(2).tolist(), parts.test.counts(2).tolist()) == ([3, 3], [2, 2])
    assert long_tail(parts, [5, 1], seed=0).train.groups.shape == (6,)


def test_whole_numbers_that_groups_cannot_make_are_refused():
    source = grouped([0] * 6 + [1] * 6, [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8])
    with pytest.raises(
        ValueError, match=r"Class 0 has groups .*`test` = 1 needs 1 of its images, .* came to 0"
    ):
        split(source, test=1)
    assert split(source, test=2).test.counts(2).tolist() == [2, 2]
    assert split(source, test=0.5).test.counts(2).tolist() == [2, 3]  # of 3, one group of 2 fits
