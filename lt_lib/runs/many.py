"""`run_many`: many runs in processes of their own, whose number does not change a bit of the results."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from lt_lib.runs.config import RunConfig
from lt_lib.runs.files import StoreError
from lt_lib.runs.results import Run
from lt_lib.runs.single import answer
from lt_lib.runs.stems import plan
from lt_lib.runs.store import Store
from lt_lib.training.config import check_number

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Report = Callable[[int, int, RunConfig], None]
Planned = list[tuple[RunConfig, list[int]]]  # runs in order, with the stems that each should leave
Replies = Generator[tuple[RunConfig, dict[str, Any]]]  # of runs as they end: `key`, or `error`


class RunsFailed(RuntimeError):
    """Some runs failed; the others are stored. `failures` holds (config, reason) of each."""

    def __init__(self, failures: list[tuple[RunConfig, str]], total: int) -> None:
        self.failures = failures
        lines = [f"- {config.describe()}: {reason}" for config, reason in failures]
        super().__init__(
            f"{len(failures)} of {total} runs failed; the others are stored and are not computed again.\n"
            + "\n".join(lines)
        )


def run_many(
    configs: Sequence[RunConfig], store: Store | None = None, workers: int = 2, progress: Report | None = None
) -> list[Run]:
    """Return the runs of `configs`, in order: from the store, or trained now by `workers` processes.

    Each process uses the threads that its run's configuration names, so results depend neither on
    `workers` nor on the order. Runs that share their first epochs train them once (see
    `lt_lib.runs.stems`). With one worker (or one missing run) everything happens in this process. A failing
    run does not stop the others. Where the environment variable LT_SCHEDULER names a Dask scheduler, such as
    `tcp://127.0.0.1:8786`, its workers train instead: see `lt_lib.runs.sweep.sweep`.

    Args:
        configs: what to run; the same run may stand there twice.
        store: by default `Store()`.
        workers: processes at once, at least 1.
        progress: called in this process with (finished runs, runs, config just finished).

    Raises:
        ValueError: bad settings or data.
        RunsFailed: at the end, when runs failed; it names each with its configuration and reason.
        ClusterError: LT_SCHEDULER is set and cannot be used.
    """
    check_number(workers, "workers", 1, 1024, whole=True)
    scheduler = os.environ.get("LT_SCHEDULER")
    if scheduler:
        from lt_lib.runs.sweep import sweep

        return sweep(configs, scheduler, store, workers, progress)
    return collect(configs, store, progress, lambda planned, store: in_processes(planned, store, workers))


def collect(
    configs: Sequence[RunConfig],
    store: Store | None,
    progress: Report | None,
    replies: Callable[[Planned, Store], Replies],
) -> list[Run]:
    """Return the runs of `configs`, in order; `replies` trains those that the store does not have.

    Args:
        configs: what to run; the same run may stand there twice.
        store: by default `Store()`.
        progress: called with (finished runs, runs, config just finished).
        replies: given the missing runs as `lt_lib.runs.stems.plan` orders them, it yields each with its
            reply (see `lt_lib.runs.single.answer`) when it has ended.

    Raises:
        ValueError: bad settings or data.
        RunsFailed: at the end, when runs failed.
    """
    store = store or Store()
    keys = [config.key() for config in configs]
    unique = dict(zip(keys, configs, strict=True))
    # each distinct run is read once, and kept: a damaged one is None here and so computed again
    runs = {key: store.get(key) for key in unique}
    missing = {key: unique[key] for key, found in runs.items() if found is None}
    report = _Progress(progress, len(unique), len(unique) - len(missing))
    failures = _compute(replies(plan(missing.values()), store), report) if missing else []
    if failures:
        raise RunsFailed(failures, len(unique))
    runs |= {key: store.get(key) for key in missing}
    return [_present(runs[key], key, store) for key in keys]


def _present(found: Run | None, key: str, store: Store) -> Run:
    if found is None:
        raise StoreError(
            f"Run {key} in {store.root} was damaged or removed just after it was stored, or its data were "
            "written anew meanwhile. Ask again."
        )
    return found


class _Progress:
    def __init__(self, call: Report | None, total: int, done: int) -> None:
        self.call, self.total, self.done = call, total, done

    def __call__(self, config: RunConfig) -> None:
        self.done += 1
        if self.call is not None:
            self.call(self.done, self.total, config)


def _compute(replies: Replies, report: _Progress) -> list[tuple[RunConfig, str]]:
    failures = []
    with contextlib.closing(replies):
        for config, reply in replies:
            if "error" in reply:
                failures.append((config, reply["error"]))
            report(config)
    return failures


def requests_of(planned: Planned, store: Store) -> list[dict[str, Any]]:
    """Return what `lt_lib.runs.single.answer` is asked for each run, in JSON types."""
    return [{"config": c.to_dict(), "store": str(store.root), "stems": stems} for c, stems in planned]


def in_processes(planned: Planned, store: Store, workers: int) -> Replies:
    """Yield the runs with their replies as they end, from `workers` processes; with one, from this one."""
    configs, requests = [config for config, _ in planned], requests_of(planned, store)
    workers = min(workers, len(planned))
    if workers <= 1:
        for config, request in zip(configs, requests, strict=True):
            yield config, answer(request)
        return
    waiting: Queue[tuple[RunConfig, dict[str, Any]]] = Queue()
    for pair in zip(configs, requests, strict=True):
        waiting.put(pair)
    done: Queue[tuple[RunConfig, dict[str, Any]]] = Queue()
    pool = [_Worker(waiting, done) for _ in range(workers)]
    try:
        for worker in pool:
            worker.start()
        for _ in configs:
            yield done.get()
    finally:  # also on an interrupt: what is unfinished resumes from its last epoch
        for worker in pool:
            worker.stop()
        for worker in pool:
            worker.join()


class _Worker(threading.Thread):
    """Feeds one process from the queue; a process that dies fails its run alone and is started anew."""

    def __init__(self, waiting: Queue[Any], done: Queue[Any]) -> None:
        super().__init__(daemon=True)
        self.waiting, self.done = waiting, done
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.guard = threading.Lock()

    def run(self) -> None:
        try:
            while not self.stopped:
                config, request = self.waiting.get_nowait()
                self.done.put((config, self._ask(config.training.threads or 1, request)))
        except Empty:
            pass
        finally:
            self._close()

    def _ask(self, threads: int, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with self.guard:
                if self.process is None and not self.stopped:
                    self.process = _spawn(threads)
                process = self.process
            line = "" if process is None else _exchange(process, json.dumps(request))
            reply: dict[str, Any] = json.loads(line) if line else self._obituary()
        except (OSError, ValueError) as error:
            reply = {"error": f"its process could not be used ({error})"}
            self._close()
        return reply

    def _obituary(self) -> dict[str, Any]:
        code = self._close()
        return {"error": f"its process ended with exit code {code}, perhaps killed for lack of memory"}

    def _close(self) -> int | None:
        with self.guard:
            process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(OSError):  # what stands in the pipe of a dead process cannot be flushed
            process.stdin.close()  # type: ignore[union-attr]
        process.stdout.close()  # type: ignore[union-attr]
        if not self.stopped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=5)  # it ends by itself when there is nothing to read
        process.kill()
        return process.wait()

    def stop(self) -> None:
        """End the process at once, also at work; the thread then ends by itself."""
        with self.guard:
            self.stopped = True
            if self.process is not None:
                self.process.kill()


def _exchange(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except BrokenPipeError:
        return ""


def _spawn(
    threads: int,
    module: str = "lt_lib.runs.worker",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    code = str(Path(__file__).resolve().parents[2])  # the same lt_lib as here, wherever it was imported from
    path = os.pathsep.join([code, *filter(None, [os.environ.get("PYTHONPATH")])])
    threading_variables = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    surroundings = {**os.environ, **threading_variables, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    with _deaf_to_interrupts():
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=surroundings if environment is None else {**surroundings, **environment},
        )


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Keep Ctrl-C, which reaches all of a terminal's processes, from those that are started in the block.

    Whoever started them hears it, and ends them; they would only add a traceback each.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
