"""Run the notebooks whose key has changed, two at a time."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from pipeline.convert import code_sources, convert, stderr_outputs, syntax_faults, write_atomically
from pipeline.kernel import run_notebook
from pipeline.keys import installed_versions, notebook_key
from pipeline.layout import BuildError, Layout, check_profile
from pipeline.progress import Progress
from pipeline.status import facts
from pipeline.workers import Worker, sole_build, start_worker

LANES = 2  # notebooks at a time: while one trains, another draws; measured on two cores


def run_notebooks(layout: Layout, force: bool = False) -> list[str]:
    """Bring every executed notebook up to date; returns the names of those that ran.

    After a failure no further notebook starts; one that runs beside it is finished and kept. A second build
    of the same profile waits until the first one has ended.

    Raises:
        BuildError: a cell failed, or is no Python, and then none has run; the message names notebook, line,
            cell, source and error.
    """
    with sole_build(layout):
        return _bring_up_to_date(layout, force)


def _bring_up_to_date(layout: Layout, force: bool) -> list[str]:
    versions = installed_versions()
    notebooks = {text.stem: convert(text) for text in layout.texts()}
    if not notebooks:
        raise BuildError(f"`{layout.notebooks}` holds no notebook; expected files called NN_name.md.")
    faults = [f for name, notebook in notebooks.items() for f in syntax_faults(layout.text(name), notebook)]
    if faults:
        raise BuildError("\n\n".join(faults))
    keys = {
        name: notebook_key(layout.text(name), code_sources(notebook), layout, versions)
        for name, notebook in notebooks.items()
    }
    stale = [name for name in notebooks if force or not _is_fresh(layout, name, keys[name])]
    if fresh := [name for name in notebooks if name not in stale]:
        print(f"Unchanged: {', '.join(fresh)}", flush=True)
    if stale:
        check_profile(layout)
        for name in stale:
            _clear(layout, name, notebooks[name])
        _run_all(layout, stale, keys)
    _remove_departed(layout, set(notebooks))
    return stale


def _run_all(layout: Layout, names: list[str], keys: dict[str, str]) -> None:
    durations = {name: _record(layout, name).get("seconds") for name in names}
    waiting = iter(sorted(names, key=lambda name: _urgency(layout, name, durations[name])))
    token = f"{os.getpid()}-{secrets.token_hex(4)}"  # a worker of another build writes elsewhere
    failures: list[str] = []
    running: dict[str, Worker] = {}
    with _stopping(running), Progress(durations, LANES) as progress:
        _fill(running, waiting, layout, token, progress)
        while running:
            for name in _answered(running):
                partial = _partial(layout, name, token)
                if failure := _failure(name, running[name].result()):
                    progress.end(name, "failed")
                    failures.append(failure)
                else:
                    _keep(layout, name, partial, keys[name], progress.end(name))
                del running[name]
            if not failures:
                _fill(running, waiting, layout, token, progress)
    if failures:
        raise BuildError("\n\n".join(failures))


@contextlib.contextmanager
def _stopping(running: dict[str, Worker]) -> Iterator[None]:
    """Whatever ends the block, no worker is left."""
    try:
        yield
    finally:
        for worker in running.values():
            worker.stop()


def _answered(running: dict[str, Worker]) -> list[str]:
    ready = wait([worker.answer for worker in running.values()])
    return [name for name, worker in running.items() if worker.answer in ready]


def _failure(name: str, answer: str | None) -> str:
    lost = f"Notebook {name} broke off: the process that ran it was killed, perhaps for want of memory."
    return lost if answer is None else answer


def _partial(layout: Layout, name: str, token: str) -> Path:
    return layout.run / ".partial" / f"{name}.{token}.ipynb"


def _urgency(layout: Layout, name: str, seconds: float | None) -> tuple[float, bool]:
    """Sorts the longest first, so that the lanes end together; of unknown length, those that train first."""
    trains = "run_many(" in layout.text(name).read_text(encoding="utf-8")
    return (-seconds if seconds else -float("inf"), not trains)


def _fill(
    running: dict[str, Worker], waiting: Iterator[str], layout: Layout, token: str, progress: Progress
) -> None:
    while len(running) < LANES and (name := next(waiting, None)):
        progress.start(name)
        running[name] = start_worker(run_notebook, layout, name, _partial(layout, name, token))


def _record(layout: Layout, name: str) -> dict:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((layout.run / f"{name}.key.json").read_text(encoding="utf-8"))
    return {}


def _is_fresh(layout: Layout, name: str, key: str) -> bool:
    """Whether the executed notebook and its outputs are, byte for byte, what was made under this key."""
    record = _record(layout, name)
    made = record.get("sha256", {})
    if record.get("key") != key or _relative(layout, layout.run / f"{name}.ipynb") not in made:
        return False
    return all(_sha256(layout.build / path) == digest for path, digest in made.items())


def _relative(layout: Layout, path: Path) -> str:
    return path.relative_to(layout.build).as_posix()


def _sha256(path: Path) -> str:
    with contextlib.suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def _clear(layout: Layout, name: str, notebook: NotebookNode) -> None:
    """Write the converted notebook and remove what earlier runs published or left unfinished."""
    write_atomically(layout.source / f"{name}.ipynb", nbformat.writes(notebook) + "\n")
    for path in [*layout.outputs(name), *(layout.run / ".partial").glob(f"{name}.*")]:
        path.unlink()


def _keep(layout: Layout, name: str, partial: Path, key: str, seconds: float) -> None:
    """Put the executed notebook in place and record what it was made from; only now it counts as fresh."""
    executed = layout.run / f"{name}.ipynb"
    os.replace(partial, executed)
    made = {_relative(layout, path): _sha256(path) for path in [executed, *layout.outputs(name)]}
    record = {"key": key, "seconds": round(seconds, 2), "sha256": made}
    record["made"] = facts(layout, name, installed_versions())
    write_atomically(layout.run / f"{name}.key.json", json.dumps(record, indent=1) + "\n")
    for number, text in stderr_outputs(nbformat.read(executed, as_version=4)):
        print(f"Note: {name}, code cell {number}, wrote to stderr: {text.strip().splitlines()[-1]}")


def _remove_departed(layout: Layout, names: set[str]) -> None:
    for path in layout.run.glob("*.ipynb"):
        if path.stem not in names:
            path.unlink()
            path.with_suffix(".key.json").unlink(missing_ok=True)
