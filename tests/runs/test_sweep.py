import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import dask.config
import distributed
import psutil
import pytest
from small_runs import bits, small_config
from stem_runs import CE, DEFERRED, configured, stem_files, without

from lt_lib import runs
from lt_lib.runs import RunConfig, RunsFailed, Store, cluster, remote, run_many, sweep
from lt_lib.runs.cluster import ClusterError, local_cluster
from lt_lib.runs.stems import plan


@pytest.fixture(scope="module")
def client():
    """Two workers that are threads of this process: starting processes, which import torch, takes seconds."""
    workers = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    address = {
        "host": "127.0.0.1",
        "protocol": "tcp",
        "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
    }
    with (
        dask.config.set({"distributed.scheduler.worker-saturation": 1.0}),  # as in a cluster of our own
        distributed.LocalCluster(**workers, **address, dashboard_address=None, silence_logs=False) as threads,
        distributed.Client(threads, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def processes():
    """A sweep's own cluster of two workers."""
    with local_cluster(2) as connection:
        yield connection.client


def failing(seed=0):
    return RunConfig.from_dict({**small_config(seed).to_dict(), "loss": {"name": "cee"}})


def test_a_sweep_has_the_bits_of_single_runs_and_shares_their_stems(client, tmp_path):
    store, losses = Store(tmp_path), (CE, DEFERRED["class mean"], DEFERRED["released"])
    configs = [configured(loss) for loss in losses] + [small_config(1, "inverse")]
    seen = []
    found = sweep([*configs, configs[0]], client, store, progress=lambda *a: seen.append(a))
    assert [r.config for r in found] == [*configs, configs[0]]
    assert [bits(r) for r in found[:4]] == [without(c) for c in configs]
    assert [(done, total) for done, total, _ in seen] == [(n, 4) for n in (1, 2, 3, 4)]
    assert len(stem_files(store)) == 1
    assert [path.name for path in (tmp_path / ".locks").glob("sweep-*")] == []
    again = sweep(configs, client, store, progress=lambda *a: seen.append(a))
    assert [r.key for r in again] == [r.key for r in found[:4]]
    assert len(seen) == 4


@pytest.fixture
def begun(monkeypatch):
    """Configurations of the runs that the workers of `client` begin, in that order."""
    configs, answer = [], remote.answer

    def noting(request):
        configs.append(RunConfig.from_dict(request["config"]))
        return answer(request)

    monkeypatch.setattr(remote, "answer", noting)
    return configs


def test_the_cluster_starts_runs_as_planned(client, begun, tmp_path):
    configs = [configured(loss) for loss in ({"name": "focal"}, DEFERRED["released"], CE)]
    configs += [small_config(seed, epochs=1) for seed in range(1, 4)]
    wanted = [config for config, _ in plan(configs)]
    assert [config.loss for config in (wanted[0], wanted[-1])] == [CE, DEFERRED["released"]]
    sweep(configs, client, Store(tmp_path))
    assert len(begun) == len(configs)
    order = [wanted.index(config) for config in begun]
    assert [abs(number - place) <= 1 for place, number in enumerate(order)] == [True] * 6, order  # in pairs


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX")
def test_a_run_whose_worker_is_killed_is_repeated_elsewhere(processes, tmp_path):
    configs = [small_config(seed, epochs=4) for seed in (1, 2, 3, 4)]
    busy = []

    def kill(done, total, config):
        if done == 1:  # the other worker is in the middle of a run
            address = next(a for a, tasks in processes.processing().items() if tasks)
            busy.append(processes.run(os.getpid, workers=[address])[address])
            os.kill(busy[0], signal.SIGKILL)

    found = sweep(configs, processes, Store(tmp_path), progress=kill)
    assert [bits(r) for r in found] == [without(c) for c in configs]
    assert busy[0] not in processes.run(os.getpid).values()


def test_a_local_worker_that_is_killed_is_started_anew(monkeypatch):
    started = []

    def idle(threads, module, arguments, environment):
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        started.append(subprocess.Popen([sys.executable, "-S", "-c", "input()"], text=True, **pipes))
        return started[-1]

    monkeypatch.setattr(cluster, "_spawn", idle)
    worker = cluster._LocalWorker("tcp://127.0.0.1:1", 0, 1, ".")
    worker.start()
    wait_until(lambda: started)
    started[0].kill()
    wait_until(lambda: len(started) == 2)
    assert started[1].poll() is None
    worker.stop()
    assert started[1].poll() is not None
    assert worker.fault is None


def wait_until(true, seconds=60):
    for _ in range(100 * seconds):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError(f"nothing happened in {seconds} s")


def test_a_failing_run_is_named_and_the_others_go_on(client, tmp_path):
    with pytest.raises(RunsFailed, match=r'(?s)1 of 3 runs failed.*"cee".*seed 0.*ValueError.*cee') as caught:
        sweep([failing(), *(small_config(s, epochs=1) for s in (1, 2))], client, Store(tmp_path))
    assert [config for config, _ in caught.value.failures] == [failing()]
    assert len(Store(tmp_path).keys()) == 2


def test_nothing_listens_beyond_the_loopback_interface(processes):
    pids = [os.getpid(), *processes.run(os.getpid).values()]
    sockets = [s for pid in pids for s in psutil.Process(pid).net_connections() if s.status == "LISTEN"]
    assert len(sockets) >= 6  # of each process: its own, and its status page
    assert {socket.laddr.ip for socket in sockets} == {"127.0.0.1"}


def test_run_many_trains_on_the_scheduler_that_the_environment_names(client, begun, tmp_path, monkeypatch):
    monkeypatch.setenv("LT_SCHEDULER", client.scheduler.address)
    configs = [small_config(seed, epochs=1) for seed in (5, 6)]
    found = run_many(configs, Store(tmp_path), workers=1)
    assert [bits(r) for r in found] == [without(c) for c in configs]
    assert len(begun) == 2
    assert client.status == "running"


def test_a_worker_that_would_change_the_bits_ends_the_sweep(tmp_path):
    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, **quiet) as threads,
        distributed.Client(threads, set_as_default=False) as client,
        pytest.raises(ClusterError, match=r"trains 2 runs at once in one process.*--nthreads 1"),
    ):
        sweep([small_config(1), small_config(2)], client, Store(tmp_path))
    assert Store(tmp_path).keys() == []


@pytest.mark.parametrize("client", ["127.0.0.1:8786", "http://127.0.0.1:8786", 3, "tcp://127.0.0.1"])
def test_a_client_of_another_kind_is_refused(client, tmp_path):
    with pytest.raises(ValueError, match=r"tcp://127\.0\.0\.1:8786.*found"):
        sweep([small_config(1)], client, Store(tmp_path))


def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_PATIENCE", 0.2)
    with pytest.raises(ClusterError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:1\. Start one"):
        sweep([small_config(1)], "tcp://127.0.0.1:1", Store(tmp_path))


def test_workers_that_cannot_start_end_the_sweep(tmp_path, monkeypatch):
    spawn, started = cluster._spawn, []

    def broken(threads, module, arguments, environment):
        started.append(arguments[1])
        return spawn(threads, "lt_lib.no_such_module", arguments, environment)

    monkeypatch.setattr(cluster, "_spawn", broken)
    with pytest.raises(
        ClusterError, match=r"No worker .* starts: its process ended 3 times with exit code 1"
    ):
        sweep([small_config(1), small_config(2)], None, Store(tmp_path))
    assert Counter(started) == {"local-0": 3, "local-1": 3}


def test_one_worker_needs_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "local_cluster", None)
    found = sweep([small_config(1, epochs=1)], None, Store(tmp_path), workers=4)
    assert bits(found[0]) == without(small_config(1, epochs=1))


def test_the_example_of_the_page_sweeps(client, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / "book" / "how-to-run.md").read_text(encoding="utf-8")
    grid, slurm = re.findall(r"```python3\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr(runs, "sweep", lambda configs, workers: sweep(configs[::4], client, Store(tmp_path)))
    exec(compile(grid, "how-to-run.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", loss")[0] for line in lines] == ["data digits, imbalance 5"] * 2
    compile(slurm, "how-to-run.md", "exec")
