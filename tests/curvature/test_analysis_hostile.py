"""Class gradients, vector scaling and walks on data that do not fit: a sentence, or the right numbers."""

import pytest
import torch
from small_curvature import images, labels, normal
from torch import nn

from lt_lib.curvature import class_gradients, class_loss_gradients, vector_scaling_share, walk

ROW = normal(1, 436)
ANALYSES = {
    "class_gradients": lambda net, x, y: class_gradients(net, x, y).class_vectors,
    "class_loss_gradients": class_loss_gradients,
    "vector_scaling": lambda net, x, y: vector_scaling_share(net, x, y, ROW, random=1).sample,
    "walk": lambda net, x, y: walk(net, ROW, x, y, steps=1).loss,
}
EACH = pytest.mark.parametrize("analyse", ANALYSES.values(), ids=ANALYSES)


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).double()


def holed() -> torch.Tensor:
    x = images(4)
    x[3, 2, 1, 0] = float("inf")
    return x


@EACH
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (holed(), labels(4), r"`images` must be finite.*\(3, 2, 1, 0\)"),
        (images(0), labels(0), "at least one"),
        (images(4), labels(3), "equally many|one class an image"),
        (images(4), labels(4) + 9, r"must be 0\.\.3"),
        (images(4), labels(4).double(), "whole numbers"),
        ((images(4) * 9).to(torch.uint8), labels(4), "normalised"),
    ],
)
def test_data_that_do_not_fit_get_a_sentence(analyse, x, y, message):
    with pytest.raises(ValueError, match=message):
        analyse(net(), x, y)


@EACH
def test_inference_mode_and_the_precision_of_images_change_nothing(analyse):
    x, y = images(4).float(), labels(4)
    expected = analyse(net(), x.double(), y)
    torch.testing.assert_close(analyse(net(), x, y), expected)
    with torch.inference_mode():
        inside = analyse(net(), x.clone(), y.clone())
        data = x.clone(), y.clone()
    torch.testing.assert_close(inside, expected)
    torch.testing.assert_close(analyse(net(), *data), expected)


def test_classes_that_are_not_the_logits_get_a_sentence():
    for classes in (3, 5, 0):
        with pytest.raises(ValueError, match="number of logits, 4"):
            class_gradients(net(), images(4), labels(4) % 3, classes)
