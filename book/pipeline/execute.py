"""Convert the text notebooks and run them through papermill, only those whose key has changed."""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jupytext
import nbformat
import papermill
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError, strip_color

from pipeline.keys import installed_versions, notebook_key
from pipeline.layout import BuildError, Layout, check_profile
from pipeline.progress import Progress

INJECTED = "injected-parameters"  # papermill's tag


class ReportingEngine(NBClientEngine):
    """papermill's own engine, which also tells which code cell begins."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        on_cell: Callable[[int], None] | None = None,
        **options: object,
    ) -> None:
        """Run the notebook; `on_cell` gets the number of each code cell, from 1, as it begins."""
        begin = nb_man.cell_start

        def cell_start(cell: NotebookNode, *args: object, **keywords: object) -> object:
            if on_cell and cell.cell_type == "code":
                before = [other for other in nb_man.nb.cells if other.cell_type == "code"]
                on_cell(next(i for i, other in enumerate(before, 1) if other is cell or other.id == cell.id))
            return begin(cell, *args, **keywords)

        nb_man.cell_start = cell_start
        super().execute_managed_notebook(nb_man, kernel_name, **options)


papermill_engines.register("reporting", ReportingEngine)


def convert(text: Path) -> NotebookNode:
    """Text notebook -> notebook without outputs; cell ids count up, so equal texts give equal notebooks."""
    notebook = jupytext.read(text)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return nbformat.from_dict(notebook)


def code_sources(notebook: NotebookNode) -> list[str]:
    """Sources of the code cells, in order."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def write_atomically(path: Path, content: str) -> None:
    """Write a text file so that it is either whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(content, encoding="utf-8", newline="\n")
    os.replace(partial, path)


def run_notebooks(layout: Layout, force: bool = False) -> list[str]:
    """Bring every executed notebook up to date; returns the names of those that ran.

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
    records = {name: _record(layout, name) for name in notebooks}
    stale = [name for name in notebooks if force or not _is_fresh(layout, name, keys[name], records[name])]
    if fresh := [name for name in notebooks if name not in stale]:
        print(f"Unchanged: {', '.join(fresh)}", flush=True)
    if stale:
        check_profile(layout)
    with Progress({name: records[name].get("seconds") for name in stale}) as progress:
        for name in stale:
            _run_one(layout, name, notebooks[name], keys[name], progress)
    _remove_departed(layout, set(notebooks))
    return stale


def _record(layout: Layout, name: str) -> dict:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((layout.run / f"{name}.key.json").read_text(encoding="utf-8"))
    return {}


def _is_fresh(layout: Layout, name: str, key: str, record: dict) -> bool:
    made = [layout.run / f"{name}.ipynb", *(layout.build / output for output in record.get("outputs", []))]
    return record.get("key") == key and all(path.is_file() for path in made)


def _remove_departed(layout: Layout, names: set[str]) -> None:
    for path in layout.run.glob("*.ipynb"):
        if path.stem not in names:
            path.unlink()
            path.with_suffix(".key.json").unlink(missing_ok=True)


def _run_one(layout: Layout, name: str, notebook: NotebookNode, key: str, progress: Progress) -> None:
    source, partial = layout.source / f"{name}.ipynb", layout.run / ".partial" / f"{name}.ipynb"
    write_atomically(source, nbformat.writes(notebook) + "\n")
    partial.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(layout.work, ignore_errors=True)
    layout.work.mkdir(parents=True)
    for path in layout.outputs(name):
        path.unlink()
    progress.start(name, 1 + len(code_sources(notebook)))
    executed = _execute(layout, name, source, partial, progress)
    seconds = progress.done(name)
    _tidy(executed)
    write_atomically(layout.run / f"{name}.ipynb", nbformat.writes(executed) + "\n")
    partial.unlink(missing_ok=True)
    record = {
        "key": key,
        "seconds": round(seconds, 2),
        "outputs": [path.relative_to(layout.build).as_posix() for path in layout.outputs(name)],
    }
    write_atomically(layout.run / f"{name}.key.json", json.dumps(record, indent=1) + "\n")
    for number, text in stderr_outputs(executed):
        print(f"Note: {name}, code cell {number}, wrote to stderr: {text.strip().splitlines()[-1]}")


def _execute(layout: Layout, name: str, source: Path, partial: Path, progress: Progress) -> NotebookNode:
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        return papermill.execute_notebook(
            source,
            partial,
            parameters={"profile": layout.profile},
            engine_name="reporting",
            kernel_name="python3",
            progress_bar=False,
            cwd=layout.work,
            extra_arguments=["--log-level=CRITICAL"],  # ipykernel warns of unencrypted TCP at every start
            on_cell=progress.step,
        )
    except PapermillExecutionError as error:
        raise BuildError(_explain(layout, name, partial, error)) from None
    except Exception as error:
        cell = f"code cell {progress.cell} (the injected parameters count as one)"
        raise BuildError(f"Notebook {name} broke off at {cell}: {type(error).__name__}: {error}") from error


def _explain(layout: Layout, name: str, partial: Path, error: PapermillExecutionError) -> str:
    text = layout.text(name)
    ours = [c for c in nbformat.read(partial, as_version=4).cells if c.cell_type == "code" and not _added(c)]
    number = next((i for i, c in enumerate(ours, 1) if any(o.output_type == "error" for o in c.outputs)), "?")
    content = text.read_text(encoding="utf-8")
    at = content.find(error.source.strip())
    line = f", line {content.count(chr(10), 0, at) + 1}" if at >= 0 else ""
    source = "\n".join(f"    {row}" for row in error.source.splitlines())
    trace = "\n".join(f"    {row}" for row in strip_color("\n".join(error.traceback)).splitlines())
    return (
        f"Notebook {name} failed with profile {layout.profile} in code cell {number} ({text}{line}):\n"
        f"{source}\n  {error.ename}: {error.evalue}\n{trace}\n"
        f"  The run up to that cell is in {partial}"
    )


def _added(cell: NotebookNode) -> bool:
    """Whether papermill put the cell in."""
    return bool({INJECTED, "papermill-error-cell-tag"} & tags(cell))


def tags(cell: NotebookNode) -> set[str]:
    """Tags of a cell."""
    return set(cell.metadata.get("tags", []))


def stderr_outputs(notebook: NotebookNode) -> list[tuple[int, str]]:
    """Code cells that wrote to stderr: (number from 1, text)."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        (number, output.text)
        for number, cell in enumerate(code, 1)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr" and output.text.strip()
    ]


def _tidy(notebook: NotebookNode) -> None:
    """Drop what names a machine or a moment, and fold the cell that papermill put in."""
    for holder in (notebook, *notebook.cells):
        for entry in ("papermill", "execution", "widgets"):
            holder.metadata.pop(entry, None)
    for cell in notebook.cells:
        if INJECTED in tags(cell):
            cell["id"] = "cell-parameters"
            cell.metadata["tags"] = [INJECTED, "hide-input"]
