"""What the module refuses, each with a sentence that names it."""

import numpy as np
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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_labels_of_every_whole_dtype_are_taken(dtype):
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 1, 0, 1, 1])
    for call in ("forward", "apply_weights", "weights"):
        scores = logits if call == "forward" else logits.exp()[:, 0]
        found, expected = (getattr(small(), call)(scores, y) for y in (labels.to(dtype), labels))
        assert torch.equal(found, expected)


def test_a_prior_whose_sum_overflows_and_an_alpha_beyond_float32():
    assert small(prior=[1e308] * 4).prior.tolist() == [1.0] * 4
    with pytest.raises(ValueError, match=r"`alpha` must be a number, at least 0 and at most 1e\+30"):
        small(alpha=1e39)


def test_each_door_takes_one_rank():
    loss, labels = small(), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"floating-point logits \(B, 4\); found shape \(3,\)"):
        loss(torch.ones(3), labels)
    for door in (loss.apply_weights, loss.weights):
        with pytest.raises(ValueError, match=r"sample losses \(B,\); found shape \(3, 4\).*`forward`"):
            door(torch.zeros(3, 4), labels)
    with pytest.raises(ValueError, match=r"A loss takes tensors.*found list and Tensor"):
        loss([[0.0] * 4] * 3, labels)
    for _ in range(2):
        with pytest.raises(ValueError, match="whole numbers"):
            loss(torch.zeros(3, 4), labels.double())
        loss(torch.zeros(3, 4), labels)


def test_negative_losses_are_refused_on_a_cpu_but_rounding_is_not():
    loss, labels = small(), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"Sample losses must be at least 0; found -0\.5"):
        loss.apply_weights(torch.tensor([1.0, -0.5, 2.0]), labels)
    assert torch.isfinite(loss.apply_weights(torch.tensor([1.0, -1e-8, 2.0]), labels))


def test_numpy_numbers_are_numbers():
    loss = small(alpha=np.int64(1), gamma=np.float32(0.5), clamp=np.float64(3), start_epoch=np.int64(2))
    assert (loss.options.alpha, loss.options.gamma, loss.options.clamp) == (1.0, 0.5, 3.0)
    assert all(type(v) is float for v in (loss.options.alpha, loss.options.gamma, loss.options.clamp))
    assert type(loss.options.start_epoch) is int
    for wrong in (True, np.bool_(True), 10**400, float("nan"), "1", None):
        with pytest.raises(ValueError, match="`alpha` must be a number"):
            small(alpha=wrong)


def test_a_share_of_the_epochs_always_starts():
    starts = {(0.8, 200): 160, (0.8, 24): 19, (0.8, 30): 24, (0.9, 4): 3, (0.99, 1): 0}
    for (share, epochs), first in starts.items():
        loss = small(start_epoch=share)
        loss.set_epoch(0, epochs)
        assert loss.clock.tolist() == [0, first]


def test_another_length_of_training_moves_the_clock_too():
    loss = small(start_epoch=0.5)
    for epochs in (10, 6):
        loss.set_epoch(0, epochs)
        assert loss.clock.tolist() == [0, epochs // 2]
    resumed = small(start_epoch=0.5)
    resumed.load_state_dict(loss.state_dict())
    resumed.set_epoch(3, 6)
    assert resumed.active


def test_epochs_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"`epoch` must be 0..4"):
        small().set_epoch(5, 5)
    with pytest.raises(ValueError, match="would never start"):
        small(start_epoch=160).set_epoch(0, 100)
