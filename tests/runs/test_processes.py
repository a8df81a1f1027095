import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import bits, small_config

from lt_lib.runs import RunConfig, RunsFailed, Store, run, run_many

HERE = str(Path(__file__).parent)

# Dies without a word at its own optimiser step `step` of the whole run: in mid-epoch, whatever is buffered.
DIE = """
import os, signal, sys
sys.path.insert(0, {here!r})
from small_runs import small_config
from lt_lib.runs import Store, run
from lt_lib.training.optimisers import SGD

take, taken = SGD.step, []

def step(self, lr):
    taken.append(lr)
    if len(taken) == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    take(self, lr)

SGD.step = step
run(small_config(loss="inverse"), Store({root!r}))
"""

# Says how many epochs it trained itself.
ASK = """
import sys
sys.path.insert(0, {here!r})
from small_runs import small_config
from lt_lib.runs import Store, run

epochs = []
run(small_config(), Store({root!r}), progress=lambda done, total: epochs.append(done))
print(len(epochs))
"""


def start(code):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
def test_a_run_killed_in_mid_epoch_ends_with_the_same_bits(tmp_path):
    config = small_config(loss="inverse")
    whole = run(config, Store(tmp_path / "whole"))
    points = {2: None, 5: 1, 11: 3}  # step -> last finished epoch
    assert int(config.split().counts.sum()) == 70  # in batches of 32: three steps an epoch, four epochs
    victims = {
        step: start(DIE.format(here=HERE, step=step, root=str(tmp_path / str(step)))) for step in points
    }
    for step, finished in points.items():
        _, complaint = victims[step].communicate()
        assert victims[step].returncode == -signal.SIGKILL, complaint
        store = Store(tmp_path / str(step))
        assert store.keys() == []
        checkpoint = store.load_checkpoint(whole.key, config)
        assert (checkpoint.state.epoch if checkpoint else None) == finished
        epochs = []
        resumed = run(config, store, progress=lambda done, _, seen=epochs: seen.append(done))
        assert epochs == list(range((finished or 0) + 1, 5))
        assert bits(resumed) == bits(whole)


def test_two_processes_that_ask_for_the_same_run_train_it_once(tmp_path):
    code = ASK.format(here=HERE, root=str(tmp_path))
    replies = [process.communicate() for process in [start(code), start(code)]]
    assert sorted(reply[0].strip() for reply in replies) == ["0", "4"], replies


def test_the_number_of_workers_changes_nothing(tmp_path):
    configs = [small_config(seed, loss) for seed in (0, 1) for loss in ("ce", "inverse")]
    seen = []
    two = run_many(configs, Store(tmp_path / "two"), workers=2, progress=lambda *a: seen.append(a[:2]))
    one = run_many([*configs, configs[0]], Store(tmp_path / "one"), workers=1)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [r.config for r in two] == configs
    assert [bits(r) for r in two] == [bits(r) for r in one[:4]]
    assert one[4].key == one[0].key
    assert run_many(configs, Store(tmp_path / "two"))[0].metrics == two[0].metrics


def failing(seed=0):
    entries = small_config(seed).to_dict()
    return RunConfig.from_dict({**entries, "loss": {"name": "cee"}})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_run_is_named_and_the_others_go_on(tmp_path, workers):
    store = Store(tmp_path)
    with pytest.raises(
        RunsFailed, match=r"(?s)1 of 3 runs failed.*\"cee\".*seed 0.*ValueError.*cee"
    ) as caught:
        run_many([failing(), small_config(1, epochs=2), small_config(2, epochs=2)], store, workers)
    assert [config for config, _ in caught.value.failures] == [failing()]
    assert len(store.keys()) == 2


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
def test_a_worker_that_dies_fails_its_run_alone(tmp_path, monkeypatch):
    import lt_lib.runs.many as many

    spawn = many._spawn
    victims = []

    def fragile(threads):
        process = spawn(threads)
        if not victims:
            process.kill()
        victims.append(process)
        return process

    monkeypatch.setattr(many, "_spawn", fragile)
    store = Store(tmp_path)
    with pytest.raises(RunsFailed, match="exit code -9"):
        run_many(
            [small_config(1, epochs=2), small_config(2, epochs=2), small_config(3, epochs=2)],
            store,
            workers=2,
        )
    assert len(store.keys()) == 2
    assert all(process.poll() is not None for process in victims)


def test_the_global_random_state_is_untouched(tmp_path):
    import torch

    before = torch.get_rng_state()
    run(small_config(epochs=1), Store(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
