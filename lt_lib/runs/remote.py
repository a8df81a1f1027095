"""What a Dask worker does for a sweep: makes sure that it would compute what is asked, then trains.

`python -m lt_lib.runs.remote ADDRESS NAME [SECONDS]` is the process of one worker of a sweep's own cluster:
one run at a time, on the loopback interface, ending with the process that started it.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch

from lt_lib.runs.config import RunConfig
from lt_lib.runs.lock import if_free
from lt_lib.runs.single import answer

LOOPBACK = "127.0.0.1"


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Train the run of a request, on a Dask worker.

    Args:
        request: `run` (for `lt_lib.runs.single.answer`), `key` (that the run has where it was asked for),
            `mark` (a locked file in the store) and `torch` (version).

    Returns:
        `key`, or `error` (the run failed), or `unfit`: a sentence that says why this worker's results would
        not be those of the process that asks. Nothing was trained then.
    """
    from distributed import get_worker

    worker = get_worker()
    fault = unfit(request, worker.state.nthreads)
    return {"unfit": f"Worker {worker.name} at {worker.address} {fault}"} if fault else answer(request["run"])


def unfit(request: dict[str, Any], threads: int) -> str | None:
    """Return why a worker that runs `threads` tasks at once does not fit a request, or None if it does."""
    if threads > 1:  # thread counts and CUDA's settings belong to the process
        return (
            f"trains {threads} runs at once in one process, which changes their bits: start it with "
            "`--nworkers N --nthreads 1`."
        )
    return _store_fault(Path(request["mark"])) or _version_fault(request["torch"]) or _key_fault(request)


def _store_fault(mark: Path) -> str | None:
    root = mark.parent.parent
    if not mark.is_file():
        return (
            f"sees another run store at {root} than the process that asks: put the store on a file system "
            "that all machines share, under the same path."
        )
    with if_free(mark) as free:
        if free:
            return (
                f"does not see the locks in {root} that other machines hold, so that runs could be trained "
                "twice or spoilt: mount that file system with locks (`flock`)."
            )
    return None


def _version_fault(asked: str) -> str | None:
    found, wanted = (version.split("+")[0] for version in (torch.__version__, asked))  # +cpu, +cu130: same
    if found == wanted:
        return None
    return f"has torch {found}, the process that asks has {wanted}: install the same version on all machines."


def _key_fault(request: dict[str, Any]) -> str | None:
    config = RunConfig.from_dict(request["run"]["config"])
    try:
        key = config.key()
    except (OSError, ValueError) as error:
        return f"cannot read the data of the run ({config.describe()}): {error}"
    if key == request["key"]:
        return None
    return (
        f"has other code or other data than the process that asks: its key of the run ({config.describe()}) "
        f"is {key}, not {request['key']}. Install the same lt_lib, and start the worker anew."
    )


def main(address: str, name: str, patience: str = "60") -> None:
    """Serve the scheduler at `address` until it goes, waiting `patience` seconds for it to appear."""
    import asyncio

    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_serve(address, name, patience))


def _end_with_parent() -> NoReturn:
    sys.stdin.buffer.read()  # a pipe that the system closes when the parent ends, kill -9 included
    os._exit(0)


async def _serve(address: str, name: str, patience: str) -> None:
    import dask.config
    from distributed import Worker

    dask.config.set({"distributed.worker.profile.enabled": False})  # it takes a share of the processor
    worker = await Worker(
        address,
        name=name,
        nthreads=1,
        host=LOOPBACK,
        dashboard=False,
        dashboard_address=f"{LOOPBACK}:0",  # of the status page that every worker serves
        memory_limit=0,  # none: a limit would stop runs that fit
        death_timeout=patience,
    )
    await worker.finished()


if __name__ == "__main__":
    main(*sys.argv[1:])
