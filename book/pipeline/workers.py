"""Processes that run notebooks, and the one build that owns them: no worker outlives its build."""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import psutil

from pipeline.layout import ROOT, Layout

_building: set[Path] = set()  # folders whose lock this process holds


@dataclass(frozen=True, eq=False)
class Worker:
    """A process that computes one answer.

    Attributes:
        process: the process.
        answer: where the answer arrives; readable too when the process ends without one.
    """

    process: BaseProcess
    answer: Connection

    def result(self) -> str | None:
        """Wait for what the function returned; None if the process ended before."""
        try:
            return self.answer.recv()
        except (EOFError, OSError):
            return None
        finally:
            self.process.join(timeout=5)
            self.stop()

    def stop(self) -> None:
        """End the process and all that it started, at once."""
        if self.process.is_alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(self.process.pid)
                _kill([root, *root.children(recursive=True)])
        self.process.join()
        self.answer.close()


def start_worker(function: Callable[..., str], *arguments: object) -> Worker:
    """Call a function of a module in a fresh process, which ends when this one does, kill -9 included."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(send, function, arguments), daemon=True)
    process.start()
    send.close()
    return Worker(process, receive)


def _work(send: Connection, function: Callable[..., str], arguments: tuple[object, ...]) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C on a terminal then reaches the build alone, which stops its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    send.send(function(*arguments))


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # a pipe that the system closes when the parent ends
    _kill(psutil.Process().children(recursive=True))
    os._exit(1)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@cache
def _locked() -> Callable[[Path], contextlib.AbstractContextManager[None]]:
    """`lt_lib.runs.lock.locked`, read from its file: importing the package imports torch (seconds)."""
    spec = importlib.util.spec_from_file_location("pipeline._lock", ROOT / "lt_lib" / "runs" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.locked


@contextlib.contextmanager
def sole_build(layout: Layout) -> Iterator[None]:
    """Be the only build of a profile during the block, waiting for another one; SIGTERM unwinds like Ctrl-C.

    Blocks may be nested.
    """
    folder = layout.build.resolve()
    if folder in _building:
        yield
        return
    with _unwinding_on_sigterm(), _announced_lock(layout):
        _building.add(folder)
        try:
            yield
        finally:
            _building.discard(folder)


@contextlib.contextmanager
def _announced_lock(layout: Layout) -> Iterator[None]:
    text = f"Another build of profile {layout.profile} is running; waiting for it to end."
    notice = threading.Timer(0.5, print, args=(text,), kwargs={"flush": True})
    notice.daemon = True
    notice.start()
    try:
        with _locked()(layout.build / ".lock"):
            notice.cancel()
            yield
    finally:
        notice.cancel()


@contextlib.contextmanager
def _unwinding_on_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
