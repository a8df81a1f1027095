"""The Dask cluster of a sweep: one of its own on this machine, or one whose address the user names.

Dask's transport executes what it receives. A cluster of our own is therefore bound to the loopback interface,
and no address is ever taken from anywhere but the caller.
"""

import logging
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from lt_lib.runs.many import _spawn
from lt_lib.runs.remote import LOOPBACK

ADDRESS = re.compile(r"(tcp|tls)://[^\s/]+:\d+")
_PATIENCE = 10  # seconds in which a named scheduler must answer
_ATTEMPTS = 3  # how often a local worker may end by an error of its own
_POLL = 0.1  # seconds between two looks at the local workers


class ClusterError(RuntimeError):
    """The cluster cannot be used, or would not compute what one process computes."""


@dataclass(frozen=True)
class Connection:
    """A Dask client, and what keeps its cluster from working at all, which Dask itself waits out."""

    client: Any
    workers: list["_LocalWorker"] = field(default_factory=list)

    def check(self) -> None:
        """Raise if the cluster's own workers cannot start.

        Raises:
            ClusterError: they end at once.
        """
        faults = [worker.fault for worker in self.workers]
        if faults and all(faults):
            raise ClusterError(f"No worker of the sweep's own cluster starts: {faults[0]}.")


@contextmanager
def connected(client: Any, workers: int, threads: int) -> Iterator[Connection]:
    """Connect to a cluster for the block.

    Args:
        client: None for a cluster of our own, the address of a scheduler, or a `distributed.Client`, which
            stays open.
        workers: processes of a cluster of our own.
        threads: of each of them.

    Raises:
        ValueError: `client` is no such thing.
        ClusterError: the cluster does not answer, or `distributed` is not installed.
    """
    dask_client = _import().Client
    if client is None:
        with local_cluster(workers, threads) as connection:
            yield connection
    elif isinstance(client, str):
        with _named(client, dask_client) as found:
            yield Connection(found)
    elif isinstance(client, dask_client) and not client.asynchronous:
        yield Connection(client)
    else:
        raise ValueError(
            "`client` must be None, the address of a scheduler such as tcp://127.0.0.1:8786, or a "
            f"`distributed.Client` that is not asynchronous; found {client!r}."
        )


def check_scheduler(address: str) -> None:
    """Make sure that a scheduler answers at `address`.

    Raises:
        ValueError: this is no address.
        ClusterError: nobody answers, or `distributed` is not installed.
    """
    with _named(address, _import().Client):
        pass


@contextmanager
def local_cluster(workers: int, threads: int = 1) -> Iterator[Connection]:
    """Run a scheduler in this process and `workers` processes, on the loopback interface, for the block.

    A worker that dies is started anew. On a machine with several CUDA devices each worker sees one of them.
    """
    distributed = _import()
    import dask.config

    # the next run goes to whoever is free, none waits behind another
    with dask.config.set({"distributed.scheduler.worker-saturation": 1.0}):
        cluster = distributed.LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            host=LOOPBACK,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": f"{LOOPBACK}:0", "dashboard": False},
            silence_logs=logging.CRITICAL,
        )
    address = cluster.scheduler_address
    with (
        cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
    ):
        pool = [_LocalWorker(address, number, threads, scratch) for number in range(workers)]
        try:
            for worker in pool:
                worker.start()
            yield Connection(client, pool)
        finally:
            for worker in pool:
                worker.stop()


class _LocalWorker(threading.Thread):
    """Keeps one worker process alive. Not Dask's own nanny, which needs a guarded main module."""

    def __init__(self, address: str, number: int, threads: int, scratch: str) -> None:
        super().__init__(daemon=True)
        self.threads, self.arguments = threads, (address, f"local-{number}")
        self.environment = {
            "DASK_TEMPORARY_DIRECTORY": scratch,
            "DASK_LOGGING__DISTRIBUTED": "critical",  # what went wrong is in the replies
            **device_of(number, os.environ.get("CUDA_VISIBLE_DEVICES"), _devices()),
        }
        self.fault: str | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        errors = 0
        while not self.ending.is_set() and not self.fault:
            try:
                code = self._live()
            except OSError as error:
                self.fault = str(error)
                return
            errors += code is not None and code > 0  # killed processes have negative codes
            if errors == _ATTEMPTS:
                self.fault = f"its process ended {errors} times with exit code {code}"

    def _live(self) -> int | None:
        process = _spawn(self.threads, "lt_lib.runs.remote", self.arguments, self.environment)
        try:
            while process.poll() is None and not self.ending.wait(_POLL):
                pass
            return process.poll()
        finally:
            _end(process)

    def stop(self) -> None:
        """End the process at once, also at work."""
        self.ending.set()
        self.join()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()  # closes the pipes


def device_of(number: int, visible: str | None, devices: int) -> dict[str, str]:
    """Return the environment that gives a worker one of several CUDA devices; empty with one or none.

    Args:
        number: of the worker, from 0.
        visible: value of CUDA_VISIBLE_DEVICES, if it is set.
        devices: how many devices this process sees.
    """
    if devices < 2:
        return {}
    names = visible.split(",") if visible else [str(device) for device in range(devices)]
    return {"CUDA_VISIBLE_DEVICES": names[number % devices]}


def _devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@contextmanager
def _named(address: str, dask_client: Any) -> Iterator[Any]:
    if not ADDRESS.fullmatch(address):
        raise ValueError(
            "The address of a scheduler must look like tcp://127.0.0.1:8786 or tls://host:8786; found "
            f"{address!r}."
        )
    try:
        client = dask_client(address, timeout=_PATIENCE, set_as_default=False)
    except OSError as error:
        raise ClusterError(
            f"No Dask scheduler answers at {address}. Start one with `dask scheduler --host 127.0.0.1`, or "
            "check address and firewall."
        ) from error
    with client:
        yield client


def _import() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ClusterError(
            "A sweep over several processes needs the package `distributed`: install the extra `cluster` "
            "(`pip install lt-lib[cluster]`), or use one worker."
        ) from error
    return distributed
