"""`run`: ask for one run; the store answers, or trains it first."""

import time
from collections.abc import Iterable
from typing import Any

from lt_lib.runs.config import RunConfig
from lt_lib.runs.edit import check_after, edit
from lt_lib.runs.experiment import Checkpoint, Progress, execute
from lt_lib.runs.results import Run
from lt_lib.runs.stems import Stems
from lt_lib.runs.store import Store


def run(
    config: RunConfig,
    store: Store | None = None,
    progress: Progress | None = None,
    stems: Iterable[int] = (),
) -> Run:
    """Return the run of `config`: from the store, or trained now and stored.

    A run that was killed goes on after its last finished epoch and ends with the same bits. Of several
    processes that ask for the same run, one trains and the others wait for it. A run whose loss is deferred
    starts from the cross-entropy epochs that the store holds already, to the same bits. A run with `after`
    first asks for the run without it, which is stored, too.

    Args:
        config: what to run.
        store: by default `Store()`.
        progress: called with (finished epochs, epochs) after each epoch; never called if the store has
            the run, and not for epochs that another run trained.
        stems: further epochs from which other runs want to start (see `lt_lib.runs.stems`); where the loss
            is still plain cross-entropy there, the run leaves its state for them.

    Raises:
        ValueError: bad settings or data.
        FloatingPointError: the loss became NaN or infinite.
        StoreError: the store cannot be written.
    """
    store = store or Store()
    key = config.key()
    found = store.get(key)
    if found is not None:
        return found
    with store.lock(key):
        found = store.get(key)
        if found is None:
            store.make_room(key)
            if config.after is None:
                _train(config, key, store, progress, stems)
            else:
                _follow(config, key, store, progress, stems)
            found = store.get(key)
    if found is None:
        raise RuntimeError(
            f"Run {key} in {store.root} was damaged or removed while it was stored. Ask for it again."
        )
    return found


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Train the run of a request in JSON types (`config`, `store`, `stems`); return its key or its error."""
    try:
        config, store = RunConfig.from_dict(request["config"]), Store(request["store"])
        found = run(config, store, stems=request["stems"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"key": found.key}


def _follow(
    config: RunConfig, key: str, store: Store, progress: Progress | None, epochs: Iterable[int]
) -> None:
    """Edit the base run and store the result. Its lock is taken after that of `key`, and never before."""
    check_after(config)
    base = run(config.base(), store, progress, epochs)
    started = time.perf_counter()
    store.put(key, config, edit(config, base.load_model(), base.history), time.perf_counter() - started)


def _train(
    config: RunConfig, key: str, store: Store, progress: Progress | None, epochs: Iterable[int]
) -> None:
    def save(checkpoint: Checkpoint) -> None:
        stems.leave(checkpoint)
        store.save_checkpoint(key, config, checkpoint)

    started = time.perf_counter()
    with Stems(config, store, epochs) as stems:
        start = stems.furthest(store.load_checkpoint(key, config))
        outcome = execute(config, start, save, progress)
    store.put(key, config, outcome, time.perf_counter() - started)
