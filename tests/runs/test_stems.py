import logging
from dataclasses import replace

import pytest
import torch
from small_runs import bits
from stem_runs import CE, DEFERRED, EPOCHS, RELEASED, START, configured, content, stem_files, trained, without

from lt_lib.losses import make_loss
from lt_lib.runs import RunConfig, Store, run, run_many
from lt_lib.runs.__main__ import main
from lt_lib.runs.experiment import Checkpoint, execute
from lt_lib.runs.stems import Stems, plain_epochs, plan
from lt_lib.training import Trainer


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.mark.parametrize("name", DEFERRED)
def test_a_run_from_a_stem_ends_with_the_bits_of_a_run_without(store, name):
    config = configured(DEFERRED[name])
    whole, epochs = trained(configured(CE), store, stems=[START])
    assert epochs == [1, 2, 3, 4, 5]
    found, epochs = trained(config, store)
    assert epochs == [4, 5]
    assert bits(found) == without(config)
    assert bits(whole) == without(configured(CE))


@pytest.mark.parametrize("name", DEFERRED)
def test_whoever_trains_the_stem_leaves_the_same_bytes(store, name, tmp_path):
    run(configured(CE), store, stems=[START])
    other = Store(tmp_path / "other")
    first, epochs = trained(configured(DEFERRED[name]), other)
    assert epochs == [1, 2, 3, 4, 5]
    assert bits(first) == without(configured(DEFERRED[name]))
    (left,), (same,) = stem_files(store), stem_files(other)
    assert left.name == same.name
    assert content(left) == content(same)
    plain, epochs = trained(configured(CE), other, stems=[START])
    assert epochs == [4, 5]
    assert bits(plain) == without(configured(CE))


@pytest.mark.parametrize("name", DEFERRED)
def test_a_stem_becomes_the_checkpoint_of_the_run_itself(store, name):
    config, kept = configured(DEFERRED[name]), []
    run(configured(CE), store, stems=[START])
    execute(config, save=lambda checkpoint: kept.append(Checkpoint(checkpoint.state, list(checkpoint.rows))))
    with Stems(config, store) as stems:
        found, own = stems.furthest(None), kept[START - 1]
    assert found.state.tensors.keys() == own.state.tensors.keys()
    for entry, tensor in own.state.tensors.items():  # the loss's own state among them
        assert torch.equal(tensor, found.state.tensors[entry]), entry
    assert (found.state.epoch, found.state.extra) == (START, own.state.extra)
    assert repr(found.rows) == repr(own.rows)


@pytest.mark.parametrize("name", DEFERRED)
def test_a_loss_before_its_start_is_cross_entropy_to_the_last_bit(name):
    hyper = dict(DEFERRED[name])
    loss, plain = make_loss(hyper.pop("name"), [7] * 10, **hyper), make_loss("ce", [7] * 10)
    loss.set_epoch(START - 1, EPOCHS)
    generator = torch.Generator().manual_seed(0)
    for size in range(5, 105):  # a mean of the terms would differ in about half of these
        logits = torch.randn(size, 10, generator=generator, requires_grad=True)
        labels = torch.randint(10, (size,), generator=generator)
        values = [rule(logits, labels) for rule in (loss, plain)]
        gradients = [torch.autograd.grad(value, logits)[0] for value in values]
        assert torch.equal(*values)
        assert torch.equal(*gradients)


@pytest.mark.parametrize(
    "loss",
    [
        {**RELEASED, "count_before_start": True},
        {**RELEASED, "class_loss": "running"},
        {**RELEASED, "class_loss": "epoch"},
        {**RELEASED, "mean": "running"},
        {**RELEASED, "mean": "epoch"},
        {**RELEASED, "start_epoch": 0},
        {"name": "class_mean", "defer_epoch": 0},
        {"name": "focal", "inverse": {"preset": "as_released", "start_epoch": 0}},
        {"name": "focal", "inverse": {"preset": "as_released", "class_loss": "running"}},
    ],
    ids=str,
)
def test_a_loss_that_remembers_or_starts_at_once_uses_no_stem(store, loss):
    config = configured(loss)
    assert plain_epochs(config) == 0
    with Stems(config, store, wanted=[1, START]) as stems:
        assert stems.epochs == []


def test_a_loss_that_remembers_trains_all_epochs_beside_a_stem(store):
    run(configured(CE), store, stems=[START])
    found, epochs = trained(configured({**RELEASED, "count_before_start": True}), store, stems=[START])
    assert epochs == [1, 2, 3, 4, 5]
    assert bits(found) == without(found.config)


def test_a_start_that_never_comes_is_still_refused(store):
    with pytest.raises(ValueError, match="never start"):
        run(configured({**RELEASED, "start_epoch": EPOCHS}), store)


def test_stems_of_several_epochs_build_on_each_other(store):
    late, later = configured({**RELEASED, "start_epoch": 2}), configured({**RELEASED, "start_epoch": 4})
    run(late, store)
    found, epochs = trained(later, store, stems=[2, 4])
    assert epochs == [3, 4, 5]
    assert bits(found) == without(later)
    found, epochs = trained(configured(CE), store, stems=[2, 4])
    assert epochs == [5]
    assert bits(found) == without(configured(CE))


@pytest.mark.parametrize("how", ["truncated", "changed", "empty", "another epoch", "another run"])
def test_a_damaged_stem_is_set_aside_and_trained_again(store, tmp_path, caplog, how):
    run(configured(CE), store, stems=[2, START])
    early, path = stem_files(store)
    whole, held = path.read_bytes(), content(path)
    wrong = {"truncated": whole[:-5], "changed": whole[:-1] + bytes([whole[-1] ^ 1]), "empty": b""}
    if how == "another run":
        run(configured(CE, seed=1), Store(tmp_path / "other"), stems=[START])
        wrong[how] = stem_files(Store(tmp_path / "other"))[0].read_bytes()
    path.write_bytes({**wrong, "another epoch": early.read_bytes()}[how])
    config = configured(DEFERRED["released"])
    with caplog.at_level(logging.WARNING):
        found, epochs = trained(config, store)
    assert epochs == [1, 2, 3, 4, 5]
    assert bits(found) == without(config)
    assert content(path) == held
    assert [p.name for p in (store.root / ".quarantine").iterdir()] == [f"{path.name}.0"]
    assert f"{path.name} is damaged" in caplog.text


def test_runs_that_differ_before_the_start_never_share(store):
    config = configured(RELEASED)
    entries = config.to_dict()
    training, data = entries["training"], entries["data"]
    changes = [
        {},
        {"seed": 1},
        {"data_seed": 1},
        {"measure_every": 1},
        {"net": {**entries["net"], "width": 3}},
        *({"data": {**data, **d}} for d in ({"imbalance": 4}, {"largest": 11}, {"test": 6})),
        *(
            {"training": {**training, **t}}
            for t in (
                {"threads": 2},
                {"epochs": EPOCHS + 1},
                {"lr": 0.05},
                {"schedule": "constant"},
                {"warmup": 1},
                {"batch": 16},
                {"weight_decay": 0.0},
                {"augment": "none"},
                {"precision": "bfloat16"},
                {"memory_format": "channels_last"},
            )
        ),
    ]
    configs = [RunConfig.from_dict({**entries, **change}) for change in changes]
    assert len({Stems(c, store).name for c in configs}) == len(changes)
    assert {Stems(replace(config, loss=loss), store).name for loss in (CE, *DEFERRED.values())} == {
        Stems(config, store).name
    }
    run(config, store)
    for other in (configs[1], configured(RELEASED, lr=0.05)):
        assert trained(other, store)[1] == [1, 2, 3, 4, 5]


def test_a_stem_is_not_carried_to_another_torch(store, monkeypatch):
    config = configured(RELEASED)
    here, key = Stems(config, store).name, config.key()
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    assert Stems(config, store).name != here
    assert config.key() == key


def test_many_runs_train_their_stem_once(store, monkeypatch):
    epochs, run_epoch = [], Trainer.run_epoch
    monkeypatch.setattr(
        Trainer, "run_epoch", lambda self, epoch: epochs.append(epoch) or run_epoch(self, epoch)
    )
    configs = [configured(loss) for loss in (CE, *DEFERRED.values())]
    found = run_many(configs, store, workers=1)
    assert len(epochs) == EPOCHS + len(DEFERRED) * (EPOCHS - START)
    assert [r.config for r in found] == configs
    monkeypatch.undo()
    assert [bits(r) for r in found] == [without(c) for c in configs]


@pytest.mark.slow  # beside the same on two workers of a cluster, in test_sweep
def test_two_workers_share_stems_to_the_same_bits(store, capsys):
    losses = (CE, {"name": "focal"}, DEFERRED["class mean"], RELEASED)
    configs = [configured(loss, seed) for seed in (0, 1) for loss in losses]
    found = run_many(configs, store, workers=2)
    assert [bits(r) for r in found] == [without(c) for c in configs]
    assert len(stem_files(store)) == 2
    assert len(store.keys()) == len(configs)
    assert main(["verify", "--store", str(store.root)]) == 0
    assert f"{len(configs)} of {len(configs)} runs" in capsys.readouterr().out


def test_the_longest_plain_run_of_a_trunk_goes_first():
    early, late = configured({**RELEASED, "start_epoch": 2}), configured({**RELEASED, "start_epoch": 4})
    plain, focal, other = configured(CE), configured({"name": "focal"}), configured(CE, seed=1)
    bad = configured({"name": "cee"})
    planned = plan([early, focal, late, plain, bad, other])
    assert [c for c, _ in planned] == [plain, other, focal, bad, early, late]
    wanted = {id(c): stems for c, stems in planned}
    assert [e for e in wanted[id(plain)] if e < EPOCHS] == [2, 4]
    assert (wanted[id(early)], wanted[id(late)], wanted[id(focal)]) == ([2], [2, 4], [])
