"""What the checks on arguments admit, widen and refuse."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from lt_lib._checks import as_vector, check_counts, check_labels
from lt_lib.data import imbalance_statistics
from lt_lib.losses import make_loss
from lt_lib.reweighting import macro_weights


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, {1, 2}, [[1], [1, 2]], [None, 1.0], [1, "a"]])
def test_what_holds_no_numbers_is_one_sentence(value):
    with pytest.raises(ValueError, match="`x` must hold numbers in a tensor, an array or a list"):
        as_vector(value, "x")
    with pytest.raises(ValueError, match="`class_counts` must hold numbers in a tensor"):
        make_loss("ce", value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3)[::-1],
        np.array([2, 1, 0], ">f8"),
        range(2, -1, -1),
        [torch.tensor(2), 1, 0],
        [Fraction(2), 1, 0],
    ],
)
def test_every_vector_of_numbers_is_taken(value):
    assert as_vector(value, "x").tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([float("inf"), 1], "must be finite; found 1 NaN or infinite"),
        ([float("nan"), 1], "must be finite"),
        ([1e300, 1], r"must lie below 2\^53.*found 1e\+300"),
        ([10**19, 1], r"must lie below 2\^53.*found 1e\+19"),
        ([10**30, 1], r"must lie below 2\^53.*found 1e\+30"),
        ([2**53, 1], r"must lie below 2\^53"),
        ([3 + 1j, 1], "must hold real numbers; found torch.complex128"),
        (torch.tensor([3 + 1j, 1]), "must hold real numbers; found torch.complex64"),
    ],
)
def test_counts_that_are_no_numbers_of_images_are_refused(counts, sentence):
    for use in (check_counts, imbalance_statistics, macro_weights, lambda n: make_loss("ce", n)):
        with pytest.raises(ValueError, match=sentence):
            use(counts)


def test_the_largest_count_is_kept_exactly():
    assert check_counts([2**53 - 1, 1]).tolist() == [2**53 - 1, 1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.int16, torch.uint16])
@pytest.mark.parametrize("classes", [2, 128, 256, 1000, 70_000])
def test_narrow_labels_are_compared_without_wrapping(dtype, classes):
    found = check_labels(torch.tensor([0, 1]).to(dtype), classes)
    assert found.dtype == torch.int64
    assert found.tolist() == [0, 1]
    if dtype not in (torch.bool, torch.int8) and classes == 2:
        with pytest.raises(ValueError, match=r"must be 0\.\.1; found 200"):
            check_labels(torch.tensor([0, 200]).to(dtype), classes)
