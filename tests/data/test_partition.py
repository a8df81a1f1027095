"""Parts of a reader's own data: shares, groups, copies, leaks and classes that are too small."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import picture

from lt_lib.data import load, source_from_arrays
from lt_lib.data.partition import absent_classes, partition
from lt_lib.data.scan import pixel_digests


def source_of(labels, pictures=None, **more):
    """Images of 2 x 2 pixels that show the number of their picture: equal numbers are copies."""
    shown = np.arange(len(labels)) if pictures is None else np.asarray(pictures)
    images = np.stack([shown // 256, shown % 256], axis=-1).astype(np.uint8)[:, None, :].repeat(2, axis=1)
    return source_from_arrays("mine", images, np.asarray(labels), **more)


def counts(split):
    return {name: part.counts(split.classes).tolist() for name, part in split.parts().items()}


def test_shares_are_met_to_the_image_and_small_classes_are_told():
    labels = np.repeat(np.arange(6), [40, 12, 3, 2, 1, 1])
    split = partition(source_of(labels), test=0.25, calibration=0.1)
    assert counts(split) == {
        "train": [26, 8, 1, 1, 1, 1],
        "calibration": [4, 1, 1, 0, 0, 0],
        "test": [10, 3, 1, 1, 0, 0],
    }
    assert absent_classes(split) == {"train": (), "calibration": ("3", "4", "5"), "test": ("4", "5")}
    assert (
        "Not in the test part, too few images, or too few groups of them, to be there too: `4`, `5`."
        in split.note
    )
    assert "a share of 0.25 of each class set aside" in split.note


def test_numbers_of_images_become_a_quarter_where_a_class_is_short():
    split = partition(source_of(np.repeat(np.arange(3), [30, 12, 2])), test=8, calibration=5)
    assert counts(split) == {"train": [17, 6, 1], "calibration": [5, 3, 0], "test": [8, 3, 1]}


def test_the_draw_follows_the_data_seed_alone():
    source = source_of(np.repeat([0, 1], [50, 20]))
    first, again, other = (partition(source, test=0.3, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    partition(source)
    assert torch.equal(state, torch.random.get_rng_state())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 25), st.integers(0, 12)), min_size=4, max_size=60),
    st.sampled_from([0.1, 0.25, 0.5, 3]),
    st.sampled_from([0, 0.2, 2]),
    st.integers(0, 100),
)
def test_no_copy_and_no_group_is_torn_and_every_class_is_learned(rows, test, calibration, seed):
    labels = np.unique([label for label, _, _ in rows], return_inverse=True)[1]
    if labels.max() == 0:
        return
    pictures, groups = (np.array([row[i] for row in rows]) for i in (1, 2))
    try:
        split = partition(source_of(labels, pictures), test, calibration, groups, seed)
    except ValueError as error:
        if "must have a class with two images that are neither copies nor of one group" not in str(error):
            raise
        return
    parts = split.parts()
    where = np.concatenate([part.index.numpy() for part in parts.values()])
    assert sorted(where.tolist()) == list(range(len(rows)))  # nothing lost, nothing twice
    for kinds in (pictures, groups):
        held = [set(kinds[part.index.numpy()].tolist()) for part in parts.values()]
        assert sum(len(h) for h in held) == len(set().union(*held))
    assert (split.counts > 0).all()


def test_a_group_with_several_labels_is_learned_from():
    labels, pictures = [0] * 8 + [1] * 8, [*range(8), *range(7), 99]  # seven pictures bear both labels
    for seed in range(5):
        split = partition(source_of(labels, pictures), test=0.25, seed=seed)
        assert set(split.test.index.tolist()) <= {7, 15}


def test_groups_join_with_copies_into_chains():
    # 0 = 1 by pixels, 1 ~ 2 by group, 2 = 3 by pixels: all four stay together
    split = partition(
        source_of([0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 3, 4]), test=0.5, groups=list("abbcdef")
    )
    assert len({name for name, part in split.parts().items() for i in part.index.tolist() if i < 4}) == 1
    assert split.test.index.tolist()[0] == 4  # the smaller of the two groups that class 0 has


def test_own_parts_are_taken_whole_and_leaks_are_left_out():
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 256, (20, 4, 4), np.uint8), rng.integers(0, 256, (6, 4, 4), np.uint8)
    train[[3, 12, 18, 19]] = test[[0, 1, 2, 5]]
    labels = np.repeat([0, 1, 2], [9, 9, 2])
    source = source_from_arrays("mine", train, labels, test, np.array([0, 0, 1, 1, 1, 1]))
    split = partition(source, test=0.5, calibration=0.2)
    assert split.test is source.test
    assert counts(split) == {"train": [6, 6, 1], "calibration": [2, 2, 1], "test": [2, 4, 0]}
    kept = set(split.train.index.tolist()) | set(split.calibration.index.tolist())
    assert kept == set(range(20)) - {3, 12}
    assert "2 training images that equal a test or calibration image left out." in split.note
    assert "Every training image equals a test or calibration image, and is kept, in: `2`." in split.note
    assert "Not in the source's own test part: `2`." in split.note


def test_images_on_disk_and_in_memory_are_split_alike(tmp_path):
    for c, n in enumerate([8, 4, 1]):
        for i in range(n):
            picture(tmp_path / f"{c}" / f"{i}.png", 100 * c + i // 2)  # pairs of copies
    splits = [
        partition(load(f"folder:{tmp_path}", size=8, memory_limit=limit), test=0.25) for limit in (None, 0)
    ]
    assert counts(splits[0])["test"] == [2, 2, 0]
    for one, other in zip(*(split.parts().values() for split in splits), strict=True):
        assert torch.equal(one.index, other.index)


def test_digests_tell_pictures_apart():
    images = torch.zeros((4, 1, 3, 3), dtype=torch.uint8)
    images[1, 0, 2, 2] = images[3, 0, 2, 2] = 1
    found = [bytes(one) for one in pixel_digests(images)]
    assert found[0] == found[2] != found[1] == found[3]


@pytest.mark.parametrize(
    ("labels", "options", "sentence"),
    [
        ([0, 0], {}, "must have at least two classes to tell apart; found one, `0`"),
        ([0, 1], {}, "must have a class with two images that are neither copies nor of one group"),
        (
            [0, 0, 1],
            {"test": 0.6, "calibration": 0.4},
            r"must leave images .* found shares of 0\.6 and 0\.4, 1 in",
        ),
        ([0, 0, 1], {"test": 0}, "`test` must be a whole number of images a class from 1, or a share"),
        ([0, 0, 1], {"calibration": -1}, "`calibration` must be a whole number"),
        ([0, 0, 1], {"groups": [1]}, r"`groups` must hold one entry for each of the 3 .* found shape \(1,\)"),
        ([0, 0, 1], {"seed": -1}, "`seed` must be a whole number in"),
    ],
)
def test_what_cannot_be_split_is_refused(labels, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        partition(source_of(labels), **options)


def test_pairs_are_split_by_their_own_function():
    with pytest.raises(ValueError, match="`digit_pairs` is composed when it is split"):
        partition(load("digit_pairs"))
