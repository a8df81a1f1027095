from dataclasses import replace

import pytest
import torch
from small_runs import small_config
from torch import nn

from lt_lib.losses import make_loss
from lt_lib.runs import experiment
from lt_lib.runs.checkpoints import pack, unpack
from lt_lib.runs.experiment import execute
from lt_lib.training import TrainConfig, train
from lt_lib.training.seeding import epoch_generator

LOSSES = {
    "plain": {"name": "ce"},
    "remembers the epoch": {"name": "inverse", "class_loss": "epoch", "macro": "step"},
    "deferred": {"name": "inverse", "preset": "as_released", "start_epoch": 1},
    "two views, mixed": {"name": "glmc"},
    "a partner batch": {"name": "meta"},
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_run_goes_on_from_the_middle_of_an_epoch_to_the_same_bits(name, monkeypatch):
    config = replace(small_config(epochs=2), loss=LOSSES[name])
    whole = execute(config)
    monkeypatch.setattr(experiment, "SAVE_SECONDS", -1.0)
    kept = []
    execute(config, save=lambda checkpoint: kept.append(pack(config, checkpoint)))
    kept = [unpack(content, config) for content in kept]
    points = [(checkpoint.state.epoch, checkpoint.state.batch) for checkpoint in kept]
    assert points == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]  # three steps an epoch
    for checkpoint in (kept[1], kept[3]):
        resumed = execute(config, checkpoint)
        assert resumed.rows == whole.rows
        assert resumed.metrics == whole.metrics
        assert all(torch.equal(value, whole.weights[name]) for name, value in resumed.weights.items())


class _Part:
    images = torch.rand(30, 1, 4, 4, generator=epoch_generator(0, 0, 0))
    labels = torch.arange(30) % 3

    def __len__(self):
        return 30


class _Keeper:
    def __init__(self):
        self.states, self.losses = [], []

    def on_step_end(self, epoch, batch, trainer):
        self.states.append(trainer.state(epoch, batch))

    def on_epoch_end(self, epoch, trainer):
        self.losses.append(trainer.epoch_loss)


def dropped(state=None):
    """Train a network with dropout; return its weights, and what a callback kept."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    keeper, config = _Keeper(), TrainConfig(epochs=2, batch=8, augment="none", device="cpu", threads=1)
    normalise = (torch.zeros(1), torch.ones(1))
    train(net, make_loss("ce", [10] * 3), _Part(), config, 0, normalise, [keeper], state)
    return net[2].weight.detach(), keeper


def test_dropout_and_the_mean_loss_go_on_in_mid_epoch():
    with torch.random.fork_rng(devices=[]):
        weight, keeper = dropped()
        assert [(state.epoch, state.batch) for state in keeper.states] == [
            (epoch, batch) for epoch in (0, 1) for batch in (1, 2, 3)
        ]
        for state in (keeper.states[0], keeper.states[4]):
            again, seen = dropped(state)
            assert torch.equal(again, weight)
            assert seen.losses == keeper.losses[state.epoch :]
