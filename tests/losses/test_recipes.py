"""What a loss asks of training beside logits and labels, and that wrappers pass it on."""

import pytest
import torch

from lt_lib.losses import LOSS_NAMES, Deferred, make_loss
from lt_lib.losses._base import ClassLoss

COUNTS = [90, 40, 15, 5]
LOGITS, LABELS = torch.zeros(3, 4), torch.tensor([0, 1, 3])


class Given(ClassLoss):
    """Its terms are the features that it is given."""

    recipe, extras = "features", "two_heads"

    def _terms(self, logits, labels, features=None):
        return features


@pytest.mark.parametrize("name", ["ce", "class_mean", "focal", "balanced_softmax", "inverse"])
def test_most_losses_need_logits_and_labels_alone(name):
    loss = make_loss(name, COUNTS)
    assert (loss.recipe, loss.extras) == ("plain", None)
    assert name in LOSS_NAMES


def test_a_deferred_loss_asks_for_its_features_once_it_is_in_force():
    loss, features = Deferred(Given(4), 2), torch.tensor([1.0, 2.0, 6.0])
    assert loss.extras == "two_heads"
    assert loss.plain_epochs(4) == 0  # another network from the start, though its first epochs are plain
    for epoch in range(4):
        loss.set_epoch(epoch, 4)
        assert loss.recipe == ("plain" if epoch < 2 else "features")
    assert loss(LOGITS, LABELS, features).item() == 3.0
    assert torch.equal(loss.per_sample(LOGITS, LABELS, features), features)
