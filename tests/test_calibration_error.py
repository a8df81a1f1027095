import math

import pytest
import torch

from lt_lib.metrics.calibration_error import calibration_error, image_weights, negative_log_likelihood


def logits_of(confidences, guess=0, classes=3):
    """Logits whose class `guess` has these probabilities, the others sharing the rest."""
    p = torch.tensor(confidences, dtype=torch.float64)
    rows = ((1 - p) / (classes - 1))[:, None].repeat(1, classes)
    rows[:, guess] = p
    return rows.log() + 5  # a shift that the softmax does not see


def test_two_bins_by_hand():
    # bin (0.6, 0.8]: two images of confidence 0.7, one right; bin (0.8, 1]: 0.9 and 0.95, both right
    logits = logits_of([0.7, 0.7, 0.9, 0.95])
    labels = torch.tensor([0, 1, 0, 0])
    by_hand = (abs(1 - 1.4) + abs(2 - 1.85)) / 4
    assert calibration_error(logits, labels, bins=5) == pytest.approx(by_hand, abs=1e-12)
    # classes alike: class 0 weighs 1/6 an image, class 1 1/2
    by_hand = abs((1 - 0.7) / 6 + (0 - 0.7) / 2) + abs(2 - 1.85) / 6
    assert calibration_error(logits, labels, bins=5, balanced=True) == pytest.approx(by_hand, abs=1e-12)


def test_a_confidence_on_a_bound_is_in_the_bin_below():
    # 0.75 with 4 bins: in (0.5, 0.75], together with 0.6, where over- and underconfidence cancel
    logits, labels = logits_of([0.75, 0.6]), torch.tensor([0, 1])
    assert calibration_error(logits, labels, bins=4) == pytest.approx(abs(1 - 1.35) / 2, abs=1e-12)


def test_labels_drawn_from_the_probabilities_are_calibrated_and_sharpened_ones_are_not():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40_000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    assert calibration_error(logits, labels) < 0.012
    sharper, p = calibration_error(3 * logits, labels), (3 * logits).softmax(1).max(1).values
    gap = float((p - logits.softmax(1).gather(1, logits.argmax(1)[:, None])[:, 0]).mean())
    assert sharper == pytest.approx(gap, abs=0.01)  # overconfident in every bin: the mean gap


def test_likelihood_is_that_of_torch():
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(50, 4, generator=generator), torch.arange(50) % 4 % 3
    wanted = torch.nn.functional.cross_entropy(logits.double(), labels)
    assert negative_log_likelihood(logits, labels) == pytest.approx(float(wanted), abs=1e-12)
    means = [
        torch.nn.functional.cross_entropy(logits[labels == c].double(), labels[labels == c]) for c in range(3)
    ]
    balanced = negative_log_likelihood(logits, labels, balanced=True)
    assert balanced == pytest.approx(float(sum(means)) / 3, abs=1e-12)
    assert negative_log_likelihood(torch.zeros(2, 4), [0, 3]) == pytest.approx(math.log(4))


def test_weights_sum_to_one_with_an_absent_class():
    weights = image_weights(torch.tensor([0, 0, 0, 2]), balanced=True)
    assert weights.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


@pytest.mark.parametrize(
    ("logits", "labels", "options", "words"),
    [
        (torch.zeros(2, 3), torch.tensor([0]), {}, "found shapes"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), {}, "n at least 1"),
        (torch.tensor([[0.0, math.nan]]), torch.tensor([0]), {}, "finite"),
        (torch.zeros(1, 3), torch.tensor([3]), {}, "must be 0..2"),
        (torch.zeros(1, 3), torch.tensor([0]), {"bins": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(logits, labels, options, words):
    with pytest.raises(ValueError, match=words):
        calibration_error(logits, labels, **options)
