"""A sweep of small runs on two local workers against the same runs one after the other.

    python -m benchmarks.sweep [--quick] [--seconds 2]

Serial: this process, `run_many` with one worker. Sweep: `runs.sweep` with two; the start of its cluster is
stated and counts, since a user waits for it, too. CPU time stands beside it, since other load on the machine
stretches the clock. Then once more with one worker killed by `kill -9` when a quarter of the runs is done.
Limits: 1.6 times the serial throughput; an overhead of 5 % of a run of two seconds; and all results bit for
bit those of the serial runs. The overhead is the mean time that a worker takes to answer for a run that is
stored already, less the time that this process takes. Throughput needs two idle cores.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lt_lib.runs import Run, RunConfig, Store, run, run_many, sweep
from lt_lib.runs.cluster import local_cluster
from lt_lib.runs.remote import work
from lt_lib.runs.single import answer
from lt_lib.runs.sweep import _marked

RUNS, QUICK, WORKERS = 64, 8, 2
FASTER, OVERHEAD = 1.6, 0.05  # limits: times the serial throughput, share of a run of two seconds
FILES = ("history.csv", "metrics.json", "weights.safetensors")


def small(seed: int, epochs: int) -> RunConfig:
    return RunConfig(
        data={"name": "digits", "largest": 100, "imbalance": 10, "calibration": 20, "test": 50},
        net={"depth": 8, "width": 4},
        loss={"name": "ce" if seed % 2 else "inverse"},
        training={"epochs": epochs, "device": "cpu", "threads": 1},
        seed=seed,
        measure_every=1000,
    )


def of_length(seconds: float, folder: Path) -> int:
    """Epochs of a run that takes so much of the processor's time here."""
    run(small(1000, 1), Store(folder))  # imports and data
    started = time.process_time()
    run(small(1001, 3), Store(folder))
    return max(1, round(3 * seconds / (time.process_time() - started)))


@dataclass(frozen=True)
class Took:
    """Seconds of all runs, and the runs."""

    runs: list[Run]
    wall: float  # the start of a cluster apart
    cpu: float  # of the processes that train
    start: float = 0.0


def serial(configs: list[RunConfig], store: Store) -> Took:
    started, cpu = time.perf_counter(), time.process_time()
    runs = run_many(configs, store, workers=1)
    return Took(runs, time.perf_counter() - started, time.process_time() - cpu)


def swept(configs: list[RunConfig], store: Store) -> Took:
    started = time.perf_counter()
    with local_cluster(WORKERS) as cluster:

        def used() -> float:
            return sum(cluster.client.run(time.process_time).values())

        cluster.client.wait_for_workers(WORKERS)
        sweep(
            [small(2000 + number, 1) for number in range(WORKERS)], cluster.client, store
        )  # imports and data
        ready, cpu = time.perf_counter(), used()
        runs = sweep(configs, cluster.client, store)
        return Took(runs, time.perf_counter() - ready, used() - cpu, ready - started)


def same(one: list[Run], other: list[Run]) -> int:
    pairs = zip(one, other, strict=True)
    return sum(
        all((a.folder / f).read_bytes() == (b.folder / f).read_bytes() for f in FILES) for a, b in pairs
    )


def killed(configs: list[RunConfig], store: Store) -> list[Run]:
    with local_cluster(WORKERS) as cluster:

        def kill(done: int, total: int, config: RunConfig) -> None:
            if done == max(1, total // 4):
                address, pid = next(iter(cluster.client.run(os.getpid).items()))
                os.kill(pid, signal.SIGKILL)
                print(f"killed worker {address} after {done} runs")

        return sweep(configs, cluster.client, store, progress=kill)


def overhead(configs: list[RunConfig], store: Store) -> float:
    """Seconds a run that a worker takes beyond this process, for runs that are stored."""
    asked: list[dict[str, Any]] = [
        {"config": c.to_dict(), "store": str(store.root), "stems": []} for c in configs
    ]
    with local_cluster(1) as cluster, _marked(store) as mark:
        rest = {"mark": str(mark), "torch": torch.__version__}
        requests = [{"run": a, "key": c.key(), **rest} for a, c in zip(asked, configs, strict=True)]
        cluster.client.gather(cluster.client.map(work, requests[:1], pure=False))  # imports and data
        started = time.perf_counter()
        cluster.client.gather(cluster.client.map(work, requests, pure=False))
        there = time.perf_counter() - started
    started = time.perf_counter()
    for request in asked:
        answer(request)
    return (there - (time.perf_counter() - started)) / len(configs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} runs")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a run (default: 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        epochs = of_length(options.seconds, folder / "length")
        configs = [small(seed, epochs) for seed in range(QUICK if options.quick else RUNS)]
        one, two = serial(configs, Store(folder / "serial")), swept(configs, Store(folder / "sweep"))
        again = killed(configs, Store(folder / "killed"))
        extra = overhead(configs, Store(folder / "serial"))
        whole = same(one.runs, two.runs), same(one.runs, again)
    report(one, two, extra, whole)


def report(one: Took, two: Took, extra: float, whole: tuple[int, int]) -> None:
    length, runs = statistics.mean(found.made["seconds"] for found in one.runs), len(one.runs)
    faster, share = one.wall / (two.start + two.wall), extra / 2
    print(f"{runs} runs of {length:.2f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, took in (("one process", one), (f"{WORKERS} workers", two)):
        print(f"{name}: start {took.start:.1f} s, runs {took.wall:.1f} s, CPU {took.cpu / runs:.2f} s a run")
    print(f"throughput: {faster:.2f} times the serial one (limit {FASTER}: {faster >= FASTER})")
    kept = f"limit {OVERHEAD:.0%}: {share <= OVERHEAD}"
    print(f"overhead: {1e3 * extra:.0f} ms a run, {share:.1%} of 2 s ({kept})")
    print(f"bit for bit the serial results: {whole[0]}, with a worker killed {whole[1]}, of {runs}")


if __name__ == "__main__":
    main()
