"""One run by several processes: the first one writes, all of them train."""

import time
from contextlib import nullcontext
from dataclasses import replace

import torch

from lt_lib._processes import current
from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import Checkpoint, Progress, execute
from lt_lib.runs.results import Run
from lt_lib.runs.single import run
from lt_lib.runs.store import Store

_CPU = torch.device("cpu")


def run_together(config: RunConfig, store: Store | None = None, progress: Progress | None = None) -> Run:
    """Return the run of `config`, trained by all processes of `lt_lib.training.processes`; alone, `run`.

    To be called in every process, with a store that all of them read. The first process locks the run and
    writes checkpoints and the result, once; the others wait for it. A run that was killed goes on from its
    last checkpoint, with any number of processes. The result is that of one process up to rounding, under the
    same key, and `metrics` says in `processes` how many trained it. Stems (`lt_lib.runs.stems`) are neither
    used nor left.

    Args:
        config: what to run.
        store: by default `Store()`.
        progress: called in the first process with (finished epochs, epochs).

    Raises:
        ValueError: bad settings or data, or settings with `after`, which one process follows.
        FloatingPointError: the loss became NaN or infinite.
        StoreError: the store cannot be read or written.
    """
    team, store = current(), store or Store()
    if team.alone:
        return run(config, store, progress)
    if config.after is not None:
        raise ValueError(
            "`after` edits a stored run in one process; found several. Run the configuration without it by "
            "torchrun, then this one without torchrun."
        )
    key = config.key()
    with store.lock(key) if team.first else nullcontext():
        team.wait()  # nobody looks before the first holds the lock, so that all see the same
        found = store.get(key)
        team.check_same("run store", [found is None], _CPU)
        if found is None:
            _train(config, key, store, progress if team.first else None)
        team.wait()
    found = store.get(key)
    if found is None:
        raise RuntimeError(f"Run {key} in {store.root} is not to be seen by process {team.rank}.")
    return found


def _train(config: RunConfig, key: str, store: Store, progress: Progress | None) -> None:
    def save(checkpoint: Checkpoint) -> None:
        store.save_checkpoint(key, config, checkpoint)

    team, started = current(), time.perf_counter()
    start = store.load_checkpoint(key, config)
    team.check_same("checkpoint", [start and (start.state.epoch, start.state.batch)], _CPU)
    if team.first:
        store.make_room(key)
    outcome = execute(config, start, save if team.first else None, progress)
    if team.first:
        noted = replace(outcome, metrics={**outcome.metrics, "processes": team.size})
        store.put(key, config, noted, time.perf_counter() - started)
