"""Runs of losses that train further heads: the configuration of the network need not name them."""

import pytest
import torch
from small_runs import small_config

from lt_lib.data import normalisation
from lt_lib.runs import RunConfig, Store, run
from lt_lib.runs.experiment import execute, make_net
from lt_lib.training import evaluate


def with_loss(**loss):
    return RunConfig.from_dict({**small_config(epochs=2).to_dict(), "loss": loss})


@pytest.mark.parametrize("name", ["glmc", "bcl"])
def test_the_loss_decides_and_a_stored_network_has_its_heads(name, tmp_path):
    config = with_loss(name=name)
    stored = run(config, Store(tmp_path))
    model = stored.load_model()
    assert any(key.startswith("extras.") for key in stored.weights())
    split = config.split()
    seen = evaluate(model, split.test, normalisation(split.train))
    right = (seen.classes == seen.labels).double().mean().item()
    assert right == pytest.approx(stored.metrics["test"]["plain"])


@pytest.mark.parametrize("name", ["glmc", "bcl"])
def test_going_on_from_a_checkpoint_gives_the_same_bits(name):
    config, kept = with_loss(name=name, inverse={}), []
    whole = execute(config, save=kept.append)
    again = execute(config, checkpoint=kept[0])
    assert all(torch.equal(value, again.weights[key]) for key, value in whole.weights.items())
    assert whole.metrics == again.metrics


def test_the_network_starts_as_without_them():
    plain, other = with_loss(name="ce"), with_loss(name="glmc", defer_epoch=1)
    split = plain.split()
    one, two = make_net(plain, split).state_dict(), make_net(other, split).state_dict()
    assert all(torch.equal(value, two[key]) for key, value in one.items())


def test_other_heads_than_the_loss_trains_are_refused():
    config = RunConfig.from_dict(
        {**with_loss(name="glmc").to_dict(), "net": {"depth": 8, "width": 2, "extras": "bcl"}}
    )
    with pytest.raises(ValueError, match=r"`glmc` trains further heads.*found BCLHeads"):
        execute(config)
