"""The configuration files of clusters do what their comments promise."""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import pytest
import yaml
from distributed import Client, LocalCluster
from distributed.cli import dask_worker

from lt_lib.runs.cluster import device_of

FILES = Path(__file__).resolve().parents[2] / "examples" / "cluster"


def test_slurm_jobs_hold_one_worker_of_one_thread_and_one_gpu() -> None:
    from dask_jobqueue.slurm import SLURMJob

    settings = dask.config.collect_yaml([str(FILES / "slurm.yaml")])
    with dask.config.set(dask.config.merge(dask.config.config, *settings)):
        script = SLURMJob("tcp://10.0.0.1:8786", "worker").job_script()
    lines = script.splitlines()
    assert {"#SBATCH -J lt-sweep", "#SBATCH -p gpu", "#SBATCH -n 1"} <= set(lines)
    assert {"#SBATCH --cpus-per-task=2", "#SBATCH -t 08:00:00", "#SBATCH --gres=gpu:1"} <= set(lines)
    command = lines[-1].split()
    assert command[:4] == [sys.executable, "-m", "distributed.cli.dask_worker", "tcp://10.0.0.1:8786"]
    options = dict(itertools.pairwise(command))
    assert options["--nthreads"] == "1"
    assert options.get("--nworkers", "1") == "1"
    assert options["--interface"] == "ib0"
    assert "--no-dashboard" in command
    known = {name for option in dask_worker.main.params for name in (*option.opts, *option.secondary_opts)}
    assert {word.split("=")[0] for word in command if word.startswith("--")} <= known


@contextlib.contextmanager
def served(address: str, file: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "dask", "spec", address, "--spec-file", str(file)]
    process = subprocess.Popen(command, env={**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical"})
    try:
        yield
    finally:
        process.terminate()  # closes its workers
        process.wait()


def test_each_gpu_has_a_worker_of_its_own() -> None:
    def surroundings(dask_worker: Any) -> tuple[str, int, str]:  # local, so that it is sent as code
        return os.environ["CUDA_VISIBLE_DEVICES"], dask_worker.state.nthreads, dask_worker.ip

    quiet = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", **quiet) as scheduler,
        Client(scheduler, set_as_default=False) as client,
        served(scheduler.scheduler_address, FILES / "gpus.yaml"),
    ):
        client.wait_for_workers(2)
        found = client.run(surroundings).values()
        names = {worker["name"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()}
    assert sorted(found) == [("0", 1, "127.0.0.1"), ("1", 1, "127.0.0.1")]
    assert names == set(yaml.safe_load((FILES / "gpus.yaml").read_text()))


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        (None, 0, [None, None, None]),
        (None, 1, [None, None, None]),
        (None, 2, ["0", "1", "0"]),
        ("3,5", 2, ["3", "5", "3"]),
        ("GPU-a,GPU-b,GPU-c", 3, ["GPU-a", "GPU-b", "GPU-c"]),
    ],
)
def test_local_workers_share_the_devices_out(
    visible: str | None, devices: int, expected: list[str | None]
) -> None:
    found = [device_of(number, visible, devices).get("CUDA_VISIBLE_DEVICES") for number in range(3)]
    assert found == expected
