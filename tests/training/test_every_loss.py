"""Every loss goes through training with the network that it asks for, and resumes to the same bits."""

import pytest
import torch
from small_training import NORMALISE, some_images

from lt_lib.losses import LOSS_NAMES, make_loss
from lt_lib.nets import build_net
from lt_lib.training import TrainConfig, train

HEADS = {"dr": {"head": "etf", "unit": True}, "ldam": {"head": "cosine"}}
CONFIG = TrainConfig(epochs=2, batch=9, lr=0.01, augment="shift", device="cpu")


class Keep:
    def on_epoch_end(self, epoch, trainer):
        if epoch == 1:
            self.state = trainer.state(epoch)


def parts(name, seed):
    loss = make_loss(name, [6, 6, 6], defer_epoch=0)
    net = {"depth": 8, "width": 2, "extras": loss.extras, **HEADS.get(name, {})}
    return build_net(net, 3, channels=1, seed=seed), loss


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_it_trains_and_resumes(name):
    part, keep = some_images(18, size=8), Keep()
    whole = train(*parts(name, 0), part, CONFIG, 3, NORMALISE, [keep]).state_dict()
    resumed = train(*parts(name, 1), part, CONFIG, 3, NORMALISE, state=keep.state).state_dict()
    start = parts(name, 0)[0].state_dict()
    assert all(torch.equal(whole[entry], resumed[entry]) for entry in whole)
    assert not all(torch.equal(whole[entry], start[entry]) for entry in whole)
