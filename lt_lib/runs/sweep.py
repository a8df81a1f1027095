"""`sweep`: many runs on a Dask cluster, with the results of one process.

`python -m lt_lib.runs sweep` trains methods x imbalances x seeds, with a progress bar (`sweep_command`).
"""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from lt_lib.runs.cluster import ClusterError, Connection, connected
from lt_lib.runs.config import RunConfig
from lt_lib.runs.files import explained
from lt_lib.runs.lock import locked
from lt_lib.runs.many import Planned, Replies, Report, collect, in_processes, requests_of
from lt_lib.runs.remote import work
from lt_lib.runs.results import Run
from lt_lib.runs.store import Store
from lt_lib.training.config import check_number

_LOOK = 1.0  # seconds between two looks at the cluster while no run ends


def sweep(
    configs: Sequence[RunConfig],
    client: Any = None,
    store: Store | None = None,
    workers: int = 2,
    progress: Report | None = None,
) -> list[Run]:
    """Return the runs of `configs`, in order: from the store, or trained now on a Dask cluster.

    Results are those of `lt_lib.runs.run_many`, bit for bit on machines of one kind. The store is shared by
    the file system: each worker must see it under the same path, with its locks, and the data likewise; a
    worker that does not, or that has other code or another torch, ends the sweep with a sentence. A run whose
    worker dies is repeated elsewhere, from its last epoch, at most three times (Dask's setting
    `distributed.scheduler.allowed-failures`). A failing run does not stop the others. Runs that start from a
    common stem wait for it (see `lt_lib.runs.stems`), and start after whoever leaves it.

    Args:
        configs: what to run; the same run may stand there twice.
        client: where. None: a cluster of `workers` processes on this machine, bound to the loopback
            interface and without a dashboard, for the duration of the call (with one worker, or one missing
            run, this process alone). An address such as `tcp://10.0.0.1:8786`, or a `distributed.Client`:
            that cluster, whose workers must run one task at a time. Whoever can reach a scheduler can run
            code on its workers: name only addresses that you trust.
        store: by default `Store()`.
        workers: processes of a cluster of our own, at least 1.
        progress: called in this process with (finished runs, runs, config just finished).

    Raises:
        ValueError: bad settings or data, or a bad `client`.
        RunsFailed: at the end, when runs failed; it names each with its configuration and reason.
        ClusterError: the cluster does not answer, or a worker of it would give other results.
        StoreError: the store cannot be written.
    """
    check_number(workers, "workers", 1, 1024, whole=True)

    def replies(planned: Planned, store: Store) -> Replies:
        if client is None and min(workers, len(planned)) == 1:
            return in_processes(planned, store, 1)
        return _on_cluster(planned, store, client, min(workers, len(planned)))

    return collect(configs, store, progress, replies)


def _on_cluster(planned: Planned, store: Store, client: Any, workers: int) -> Replies:
    threads = planned[0][0].training.threads or 1
    with _marked(store) as mark, connected(client, workers, threads) as cluster:
        requests = [
            {"run": {**run, "store": str(store.root.resolve())}, "key": config.key()}
            | {"mark": str(mark), "torch": torch.__version__}
            for run, (config, _) in zip(requests_of(planned, store), planned, strict=True)
        ]
        names = [(mark.stem, number) for number in range(len(planned))]  # tasks start in this order
        futures = cluster.client.map(work, requests, key=names, pure=False)
        try:
            for future in _ended(futures, cluster):
                yield planned[future.key[1]][0], _reply(future)
        finally:
            cluster.client.cancel(futures, force=True)


@contextmanager
def _marked(store: Store) -> Iterator[Path]:
    """Hold the lock of a file in the store, by which workers know the store and that its locks reach them."""
    mark = store.root.resolve() / ".locks" / f"sweep-{secrets.token_hex(8)}.lock"
    holding = locked(mark)
    with explained(store.root):
        holding.__enter__()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
        holding.__exit__(None, None, None)


def _ended(futures: list[Any], cluster: Connection) -> Iterator[Any]:
    """Yield futures as they end, in whatever way."""
    ended: SimpleQueue[Any] = SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    left = len(futures)
    while left:
        try:
            yield ended.get(timeout=_LOOK)
            left -= 1
        except Empty:
            cluster.check()


def _reply(future: Any) -> dict[str, Any]:
    from distributed.scheduler import KilledWorker

    if future.status == "cancelled":
        raise ClusterError(
            "The scheduler of the sweep was lost. Finished runs are stored: start the sweep again."
        )
    try:
        reply: dict[str, Any] = future.result()
    except KilledWorker:
        return {"error": "its worker died again and again, perhaps killed for lack of memory"}
    except Exception as error:
        return {"error": f"its worker could not be used ({type(error).__name__}: {error})"}
    if "unfit" in reply:
        raise ClusterError(reply["unfit"])
    return reply


if __name__ == "__main__":
    from lt_lib.runs.__main__ import main

    sys.exit(main(["sweep", *sys.argv[1:]]))
