"""What the module refuses, each with a sentence that names it."""

import pytest
import torch

from lt_lib.reweighting import InverseReweighting


def small(**options):
    return InverseReweighting([40, 20, 10, 5], **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -1.0}, "`alpha` must be a number, at least 0"),
        ({"gamma": -0.5}, "`gamma` must be a number, at least 0"),
        ({"clamp": 0.0}, "`clamp` must be a number, above 0"),
        ({"clamp": -1.0}, "`clamp`"),
        ({"eps": -1e-8}, "`eps`"),
        ({"momentum": 1.0}, "`momentum` must be in"),
        ({"prior": [1.0, 1.0]}, "`prior` must hold one number for each of the 4 classes; found 2"),
        ({"prior": [0.0, 0.0, 0.0, 0.0]}, "`prior` must hold numbers at least 0, not all 0"),
        ({"prior": "inverted"}, "Did you mean `inverse`"),
        ({"mean": "clas"}, "Did you mean `class`"),
        ({"class_loss": "batches"}, "`class_loss` must be one of"),
        ({"reduction": "sum"}, "`reduction` must be one of"),
        ({"macro": "never"}, "`macro` must be one of"),
        ({"start_epoch": -1}, "`start_epoch` must be a whole epoch"),
        ({"start_epoch": 1.5}, "`start_epoch` must be a whole epoch"),
        ({"through_weights": "yes"}, "`through_weights` must be true or false"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        small(**options)


def test_counts_with_a_zero_name_the_class():
    with pytest.raises(ValueError, match=r"Class 2 has 0 images"):  # guards D2
        InverseReweighting([5, 3, 0])


def test_bad_batches_are_named_on_a_cpu_every_time():
    loss, logits = small(), torch.zeros(3, 4)
    for _ in range(2):  # the first batch and a later one
        for wrong in ([0, 4, 1], [0, -1, 1], [0, -100, 1]):
            with pytest.raises(ValueError, match=r"`labels` must be 0..3"):
                loss(logits, torch.tensor(wrong))
            with pytest.raises(ValueError, match=r"`labels` must be 0..3"):
                loss.apply_weights(torch.ones(3), torch.tensor(wrong))
        assert torch.isfinite(loss(logits, torch.tensor([0, 1, 2])))
    with pytest.raises(ValueError, match=r"4 classes.*found shape \(3, 5\)"):
        loss(torch.zeros(3, 5), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="`labels` is empty"):
        loss(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="`reduction` must be one of mean, none"):
        loss(logits, torch.tensor([0, 1, 2]), reduction="sum")


def test_epochs_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"`epoch` must be 0..4"):
        small().set_epoch(5, 5)
    with pytest.raises(ValueError, match="would never start"):
        small(start_epoch=160).set_epoch(0, 100)
