"""Run the notebooks whose key has changed, two at a time."""

import contextlib
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

import nbformat
from nbformat import NotebookNode

from pipeline.convert import code_sources, convert, stderr_outputs, write_atomically
from pipeline.kernel import run_notebook
from pipeline.keys import installed_versions, notebook_key
from pipeline.layout import BuildError, Layout, check_profile
from pipeline.progress import Progress

LANES = 2  # notebooks at a time: while one trains, another draws; measured on two cores


def run_notebooks(layout: Layout, force: bool = False) -> list[str]:
    """Bring every executed notebook up to date; returns the names of those that ran.

    After a failure no further notebook starts; one that runs beside it is finished and kept.

    Raises:
        BuildError: a cell failed; the message names notebook, line, cell, source and error.
    """
    versions = installed_versions()
    notebooks = {text.stem: convert(text) for text in layout.texts()}
    if not notebooks:
        raise BuildError(f"`{layout.notebooks}` holds no notebook; expected files called NN_name.md.")
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
    failures: list[str] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(LANES, mp_context=spawn) as pool, Progress(durations, LANES) as progress:
        running: dict[Future[str], str] = {}
        _fill(running, waiting, pool, layout, progress)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                if failure := future.result():
                    progress.end(name, "failed")
                    failures.append(failure)
                else:
                    _keep(layout, name, keys[name], progress.end(name))
            if not failures:
                _fill(running, waiting, pool, layout, progress)
    if failures:
        raise BuildError("\n\n".join(failures))


def _urgency(layout: Layout, name: str, seconds: float | None) -> tuple[float, bool]:
    """Sorts the longest first, so that the lanes end together; of unknown length, those that train first."""
    trains = "run_many(" in layout.text(name).read_text(encoding="utf-8")
    return (-seconds if seconds else -float("inf"), not trains)


def _fill(
    running: dict[Future[str], str],
    waiting: Iterator[str],
    pool: ProcessPoolExecutor,
    layout: Layout,
    progress: Progress,
) -> None:
    while len(running) < LANES and (name := next(waiting, None)):
        progress.start(name)
        running[pool.submit(run_notebook, layout, name)] = name


def _record(layout: Layout, name: str) -> dict:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((layout.run / f"{name}.key.json").read_text(encoding="utf-8"))
    return {}


def _is_fresh(layout: Layout, name: str, key: str) -> bool:
    record = _record(layout, name)
    made = [layout.run / f"{name}.ipynb", *(layout.build / output for output in record.get("outputs", []))]
    return record.get("key") == key and all(path.is_file() for path in made)


def _clear(layout: Layout, name: str, notebook: NotebookNode) -> None:
    """Write the converted notebook and remove what an earlier run published."""
    write_atomically(layout.source / f"{name}.ipynb", nbformat.writes(notebook) + "\n")
    for path in layout.outputs(name):
        path.unlink()


def _keep(layout: Layout, name: str, key: str, seconds: float) -> None:
    """Record what the executed notebook was made from; only now it counts as fresh."""
    outputs = [path.relative_to(layout.build).as_posix() for path in layout.outputs(name)]
    record = {"key": key, "seconds": round(seconds, 2), "outputs": outputs}
    write_atomically(layout.run / f"{name}.key.json", json.dumps(record, indent=1) + "\n")
    for number, text in stderr_outputs(nbformat.read(layout.run / f"{name}.ipynb", as_version=4)):
        print(f"Note: {name}, code cell {number}, wrote to stderr: {text.strip().splitlines()[-1]}")


def _remove_departed(layout: Layout, names: set[str]) -> None:
    for path in layout.run.glob("*.ipynb"):
        if path.stem not in names:
            path.unlink()
            path.with_suffix(".key.json").unlink(missing_ok=True)
