"""Stems of losses that are reweighted late: up to then they are the loss alone."""

from dataclasses import replace

import pytest
import torch
from small_runs import bits
from stem_runs import EPOCHS, START, configured, stem_files, trained, without

from lt_lib.runs import Store, run, run_many
from lt_lib.runs.experiment import Checkpoint, execute
from lt_lib.runs.stems import Stems, plain_epochs, plan
from lt_lib.training import Trainer

LATE = {"preset": "as_released", "start_epoch": START}
HOSTS = {
    "focal": {"name": "focal"},
    "group dro": {"name": "group_dro"},  # its state moves with every batch
    "glmc": {"name": "glmc"},
    "bcl": {"name": "bcl"},
    "weighted late": {"name": "focal", "drw_epoch": 1},
}


def host(name, reweighted=False):
    loss = HOSTS[name]
    return configured({**loss, "inverse": LATE} if reweighted else loss)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.mark.parametrize("name", HOSTS)
def test_a_reweighted_loss_starts_from_the_loss_alone_to_the_same_bits(store, name):
    alone, config = host(name), host(name, reweighted=True)
    assert (plain_epochs(alone), plain_epochs(config)) == (EPOCHS, START)
    whole, epochs = trained(alone, store, stems=[START])
    assert epochs == [1, 2, 3, 4, 5]
    found, epochs = trained(config, store)
    assert epochs == [4, 5]
    assert bits(found) == without(config)
    assert bits(whole) == without(alone)


@pytest.mark.parametrize("name", HOSTS)
def test_the_loss_alone_starts_from_a_reweighted_one_to_the_same_bits(store, name):
    run(host(name, reweighted=True), store)
    found, epochs = trained(host(name), store, stems=[START])
    assert epochs == [4, 5]
    assert bits(found) == without(host(name))


@pytest.mark.parametrize("name", ["group dro", "glmc"])
def test_a_stem_becomes_the_checkpoint_of_the_reweighted_run(store, name):
    config, kept = host(name, reweighted=True), []
    run(host(name), store, stems=[START])
    execute(config, save=lambda checkpoint: kept.append(Checkpoint(checkpoint.state, list(checkpoint.rows))))
    with Stems(config, store) as stems:
        found, own = stems.furthest(None), kept[START - 1]
    assert found.state.tensors.keys() == own.state.tensors.keys()
    for entry, tensor in own.state.tensors.items():
        assert torch.equal(tensor, found.state.tensors[entry]), entry
    assert repr(found.rows) == repr(own.rows)


def test_hosts_share_with_their_own_reweighted_runs_alone(store, monkeypatch):
    names = [Stems(host(name), store).name for name in HOSTS]
    assert len(set(names)) == len(names)
    assert [Stems(host(name, reweighted=True), store).name for name in HOSTS] == names
    stronger = replace(host("focal"), loss={"name": "focal", "gamma": 3.0})
    assert Stems(stronger, store).name not in names
    epochs, run_epoch = [], Trainer.run_epoch
    monkeypatch.setattr(
        Trainer, "run_epoch", lambda self, epoch: epochs.append(epoch) or run_epoch(self, epoch)
    )
    configs = [host("focal"), host("group dro"), host("focal", reweighted=True)]
    run_many(configs, store, workers=1)
    assert len(epochs) == 2 * EPOCHS + EPOCHS - START
    assert len(stem_files(store)) == 1


def test_a_loss_alone_in_its_plan_leaves_nothing():
    planned = plan([host("glmc"), host("focal", reweighted=True), host("focal")])
    wanted = {str(config.loss): stems for config, stems in planned}
    assert [config.loss["name"] for config, _ in planned] == ["focal", "glmc", "focal"]
    assert wanted[str(host("glmc").loss)] == []
    assert [e for e in wanted[str(host("focal").loss)] if e < EPOCHS] == [START]
