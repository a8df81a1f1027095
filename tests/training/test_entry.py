"""What a training refuses before its first step: class counts and callbacks that do not fit."""

import pytest
import torch
from small_training import NORMALISE, small_net, some_images

from lt_lib.losses import make_loss
from lt_lib.training import TrainConfig, train

CONFIG = TrainConfig(epochs=2, batch=16, device="cpu")
COUNTS = [11, 11, 11]


class Keep:
    """Keeps the number of each epoch."""

    def __init__(self):
        self.epochs = []

    def on_epoch_end(self, epoch, trainer):
        self.epochs.append(epoch)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([11, 12, 11], "built for 12 images of class 1, but the labels hold 11"),
        ([11, 11], "built for 2 classes, but the network gives 3 logits"),
        ([11, 11, 11, 11], "built for 4 classes"),
    ],
)
@pytest.mark.parametrize("hyper", [{}, {"drw_epoch": 1, "inverse": {}, "defer_epoch": 1}])
def test_class_counts_that_disagree_with_the_labels_are_refused(counts, sentence, hyper):
    loss = make_loss("balanced_softmax", counts, **hyper)
    with pytest.raises(ValueError, match=sentence):
        train(small_net(), loss, some_images(), CONFIG, 0, NORMALISE)
    assert not any("class_counts" in name for name in loss.state_dict())


def test_class_counts_may_be_meant_to_differ():
    part, config = some_images(30), TrainConfig(epochs=1, batch=16, device="cpu")
    loss = make_loss("balanced_softmax", COUNTS)
    with pytest.raises(ValueError, match=r"11 images .* hold 10.*set `loss\.class_counts = None`"):
        train(small_net(), loss, part, config, 0, NORMALISE)
    loss.class_counts = None
    train(small_net(), loss, part, config, 0, NORMALISE)


@pytest.mark.parametrize(
    ("callbacks", "words"), [([Keep], "the class Keep"), ([print], "found <built-in"), (Keep(), "a list of")]
)
def test_what_is_no_callback_is_refused_before_training(callbacks, words):
    net = small_net()
    with pytest.raises(ValueError, match=f"`callbacks` must be .*{words}"):
        train(net, make_loss("ce", COUNTS), some_images(), CONFIG, 0, NORMALISE, callbacks)
    start = small_net().state_dict()
    assert all(torch.equal(value, start[name]) for name, value in net.state_dict().items())


def test_callbacks_from_an_iterator_are_called_in_every_epoch():
    keep = Keep()
    callbacks = (callback for callback in [keep])
    train(small_net(), make_loss("ce", COUNTS), some_images(), CONFIG, 0, NORMALISE, callbacks)
    assert keep.epochs == [1, 2]
