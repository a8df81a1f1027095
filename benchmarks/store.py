"""How long it takes to list and to read a run store of 10,000 runs.

    python -m benchmarks.store [--quick]

The runs are copies of a small one under other keys. `list` is the whole command in a process of its own,
start included: with the index that the store keeps, and without it, as of a store whose index was deleted.
Limit: one second. CPU time stands beside it, since other load on the machine stretches the first. "read" is
the mean time of `Store.get`, which compares every byte with its checksum.
"""

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from lt_lib.runs import RunConfig, Store
from lt_lib.runs.experiment import Outcome
from lt_lib.runs.listing import INDEX, add_to_index

RUNS, QUICK = 10_000, 1000
LIMIT = 1.0  # seconds
COMMAND = (sys.executable, "-m", "lt_lib.runs", "list", "--store")


def fill(store: Store, runs: int) -> list[str]:
    config = RunConfig()
    rows = [{"epoch": epoch, "train_class_loss": [0.1] * 10} for epoch in range(1, 31)]
    outcome = Outcome(rows, {"test": {"balanced": 0.5}}, {"weight": torch.zeros(2500)})
    first = "0" * 32
    store.put(first, config, outcome, 1.0)
    files, entries = list((store.root / first).iterdir()), config.to_dict()
    keys = [hashlib.sha256(str(number).encode()).hexdigest()[:32] for number in range(runs - 1)]
    for key in keys:
        (store.root / key).mkdir()
        for path in files:  # the list reads names; linked, since it is faster than to copy
            os.link(path, store.root / key / path.name)
        add_to_index(store.root, key, entries)
    return [first, *keys]


def listed(store: Store) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    started, before = time.perf_counter(), os.times()
    done = subprocess.run([*COMMAND, str(store.root)], capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - started, os.times()
    assert len(done.stdout.splitlines()) == len(store.keys())
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    return seconds, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} runs")
    runs = QUICK if parser.parse_args().quick else RUNS
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        keys = fill(store, runs)
        fast = [listed(store) for _ in range(5)]
        os.remove(store.root / INDEX)
        slow = [listed(store) for _ in range(5)]
        started = time.perf_counter()
        read = [store.get(key) for key in keys[:200]]
        each = (time.perf_counter() - started) / len(read)
    print(f"{runs} runs | median of 5 | its CPU time")
    for name, times in (("list", fast), ("list, no index", slow)):
        print(f"{name:14} | {median(times, 0):.2f} s | {median(times, 1):.2f} s")
    print(f"{'read a run':14} | {1e3 * each:.1f} ms")
    if runs == RUNS:
        clock, spent = (median(fast, which) <= LIMIT for which in (0, 1))
        print(f"list within {LIMIT:g} s: {clock}; its CPU time: {spent}")


def median(times: list[tuple[float, float]], which: int) -> float:
    return statistics.median(pair[which] for pair in times)


if __name__ == "__main__":
    main()
