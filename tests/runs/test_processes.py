import os
import signal
from pathlib import Path

import pytest
import torch
from small_runs import bits, small_config

from lt_lib.runs import RunConfig, RunsFailed, Store, many, run, run_many

HERE = str(Path(__file__).parent)

# Each child is a process of its own.
CHILDREN = """
import os, sys
sys.path.insert(0, {here!r})
from small_runs import die_at, small_config
from lt_lib.runs import Store, run

def die_in_step(step, root):
    die_at(step)
    run(small_config(loss="inverse"), Store(os.path.join(root, str(step))))

def ask(_, root):
    epochs = []
    run(small_config(), Store(root), progress=lambda done, total: epochs.append(done))
    os._exit(len(epochs))  # how many it trained itself

children = []
for argument in {arguments!r}:
    children.append(os.fork())
    if children[-1] == 0:
        {action}(argument, {root!r})
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork and SIGKILL are POSIX")


@pytest.fixture
def statuses(run_forked):
    """Exit statuses of children that do `action` at once, one for each argument."""

    def statuses(action, arguments, root):
        done = run_forked(CHILDREN.format(here=HERE, action=action, arguments=arguments, root=str(root)))
        assert done.returncode == 0, done.stderr
        return [int(status) for status in done.stdout.split()]

    return statuses


@posix
def test_a_run_killed_in_mid_epoch_ends_with_the_same_bits(tmp_path, statuses):
    config = small_config(loss="inverse")
    whole = run(config, Store(tmp_path / "whole"))
    points = {2: None, 5: 1, 11: 3}  # step -> last finished epoch
    assert int(config.split().counts.sum()) == 70  # in batches of 32: three steps an epoch, four epochs
    assert statuses("die_in_step", list(points), tmp_path) == [-signal.SIGKILL] * 3
    for step, finished in points.items():
        store = Store(tmp_path / str(step))
        assert store.keys() == []
        checkpoint = store.load_checkpoint(whole.key, config)
        assert (checkpoint.state.epoch if checkpoint else None) == finished
        epochs = []
        resumed = run(config, store, progress=lambda done, _, seen=epochs: seen.append(done))
        assert epochs == list(range((finished or 0) + 1, 5))
        assert bits(resumed) == bits(whole)


@posix
def test_processes_that_ask_for_the_same_run_train_it_once(tmp_path, statuses):
    assert sorted(statuses("ask", [0, 1, 2], tmp_path)) == [0, 0, 4]


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


def test_a_failing_run_is_named_and_the_others_go_on(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(RunsFailed, match=r'(?s)1 of 2 runs failed.*"cee".*seed 0.*ValueError.*cee') as caught:
        run_many([failing(), small_config(1, epochs=2)], store, workers=1)
    assert [config for config, _ in caught.value.failures] == [failing()]
    assert len(store.keys()) == 1


def test_a_process_that_dies_fails_its_run_alone(tmp_path, monkeypatch):
    spawn, started = many._spawn, []

    def fragile(threads):
        started.append(spawn(threads))
        if len(started) == 1:
            started[0].kill()
        return started[-1]

    monkeypatch.setattr(many, "_spawn", fragile)
    store = Store(tmp_path)
    with pytest.raises(RunsFailed, match=r'(?s)2 of 4 runs failed.*"cee".*exit code|exit code.*"cee"'):
        run_many([*(small_config(seed, epochs=2) for seed in (1, 2, 3)), failing()], store, workers=2)
    assert len(store.keys()) == 2
    assert all(process.poll() is not None for process in started)


def test_the_global_random_state_is_untouched(tmp_path):
    before = torch.get_rng_state()
    run(small_config(epochs=1), Store(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
