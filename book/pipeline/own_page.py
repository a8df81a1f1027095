"""The page on a reader's own data: run with parameters, and followed on stderr."""

import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError, strip_color

from pipeline.convert import convert, write_atomically
from pipeline.layout import BuildError
from pipeline.progress import clock

TRAINS, PLANS = "compare_methods(plan", "plan.text()"  # in the cell that trains first, and in one before it
REFUSALS = ("ValueError", "FileNotFoundError", "PermissionError", "NotADirectoryError")


class Refused(BuildError):
    """What was asked for cannot be done, and nothing was."""


class _Told(NBClientEngine):
    """Papermill's usual engine, which tells `progress` of each cell as it begins and ends."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, progress: Any, **options: Any) -> Any:
        start, complete = nb_man.cell_start, nb_man.cell_complete

        def started(cell: NotebookNode, index: int) -> None:
            progress.start(nb_man.nb.cells[: index + 1])
            start(cell, index)

        def completed(cell: NotebookNode, cell_index: int) -> None:
            complete(cell, cell_index=cell_index)
            progress.complete(cell)

        nb_man.cell_start, nb_man.cell_complete = started, completed
        return super().execute_managed_notebook(nb_man, kernel_name, **options)


papermill_engines.register("told", _Told)


class Progress:
    """Lines on stderr: each part of the page as it begins, the plan, and a sign of life every half minute."""

    def __init__(self, minutes: float, repeat: float = 30.0) -> None:
        self.minutes, self.repeat, self.part = minutes, repeat, ""
        self._began, self._spoke = time.monotonic(), time.monotonic()
        self._over = threading.Event()

    def start(self, cells: list[NotebookNode]) -> None:
        """The last of these cells begins."""
        part = _part(cells)
        if part != self.part:
            self.part = part
            self._say(part)

    def complete(self, cell: NotebookNode) -> None:
        """A cell has ended; the plan is shown before anything is trained."""
        if PLANS in cell.source:
            for output in cell.get("outputs", []):
                self._say(output.get("data", {}).get("text/markdown", "").partition("\n\n| method")[0])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Speak of long silences until the block ends."""
        ticker = threading.Thread(target=self._tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            self._over.set()
            ticker.join()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            if time.monotonic() - self._spoke >= self.repeat:
                self._say(f"{self.part} ...")

    def _say(self, text: str) -> None:
        if text:
            self._spoke = time.monotonic()
            times = f"{clock(self._spoke - self._began)} of {clock(60 * self.minutes)}"
            print(f"[{times}] {text}", file=sys.stderr, flush=True)


def execute(text: Path, parameters: Mapping[str, Any], folder: Path) -> NotebookNode:
    """Run a text notebook with parameters, `minutes` among them; it is kept in `folder` under its name.

    Raises:
        Refused: a cell before the training refused what it was given; a folder that was not there before is
            gone again.
        BuildError: a cell failed later; the message names the partial notebook.
    """
    new, partial = not folder.exists(), folder / "partial.ipynb"
    write_atomically(partial, nbformat.writes(convert(text)))
    progress = Progress(float(parameters["minutes"]))
    try:
        with progress.running():
            executed = _executed(partial, dict(parameters), progress)
    except Exception as error:
        if _refuses(error, partial):
            _forget(folder, partial, new)
            raise Refused(_sentence(error)) from None
        raise BuildError(
            f"The page broke off in its part `{progress.part}`: {_sentence(error, named=True)}\nWhat it had "
            f"done until then is in {os.path.relpath(partial)}"
        ) from None
    os.replace(partial, folder / f"{folder.name}.ipynb")
    return executed


def _executed(notebook: Path, parameters: dict[str, Any], progress: Progress) -> NotebookNode:
    logging.getLogger("papermill").setLevel(logging.ERROR)
    return papermill.execute_notebook(
        notebook,
        notebook,
        parameters,
        engine_name="told",
        progress=progress,
        kernel_name="python3",
        progress_bar=False,
        cwd=notebook.parent,
        extra_arguments=["--log-level=CRITICAL"],  # ipykernel warns of unencrypted TCP at every start
    )


def _refuses(error: Exception, partial: Path) -> bool:
    """Whether a cell before the training has refused the data, the minutes or another parameter."""
    if not isinstance(error, PapermillExecutionError) or error.ename not in REFUSALS:
        return False
    left = nbformat.read(partial, as_version=4).cells[error.cell_index + 1 :]
    return any(TRAINS in cell.source for cell in left)


def _sentence(error: Exception, named: bool = False) -> str:
    inside = isinstance(error, PapermillExecutionError)
    name, value = (error.ename, error.evalue) if inside else (type(error).__name__, error)
    text = strip_color(str(value)).strip()
    return f"{name}: {text}" if named else text


def _part(cells: list[NotebookNode]) -> str:
    """The heading above the last of the cells."""
    headings = [line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    return next((line.lstrip("# ") for line in reversed(headings) if re.match("##? ", line)), "")


def _forget(folder: Path, partial: Path, new: bool) -> None:
    if new:
        shutil.rmtree(folder, ignore_errors=True)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()
    else:
        partial.unlink(missing_ok=True)
