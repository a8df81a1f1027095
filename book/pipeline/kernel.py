"""Run one notebook through papermill; called in a process of its own, since papermill changes the folder."""

import logging
import shutil
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError, strip_color

from pipeline.convert import INJECTED, tags, write_atomically
from pipeline.layout import Layout

ADDED = {INJECTED, "papermill-error-cell-tag"}  # cells that papermill puts in


def run_notebook(layout: Layout, name: str, partial: Path) -> str:
    """Run the converted notebook `name` into `partial`; the build moves it from there if all went well.

    Returns:
        "", or what failed: notebook, line, cell, source and error.
    """
    work = layout.work / name
    shutil.rmtree(work, ignore_errors=True)
    for folder in (partial.parent, work):
        folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        executed = papermill.execute_notebook(
            layout.source / f"{name}.ipynb",
            partial,
            parameters={"profile": layout.profile},
            kernel_name="python3",
            progress_bar=False,
            cwd=work,
            extra_arguments=["--log-level=CRITICAL"],  # ipykernel warns of unencrypted TCP at every start
        )
    except PapermillExecutionError as error:
        return _explain(layout, name, partial, error)
    except Exception as error:
        cells = nbformat.read(partial, as_version=4).cells if partial.is_file() else []
        done = [cell for cell in cells if cell.get("execution_count")]
        where = f"after {len(done)} code cells, the injected parameters among them"
        return f"Notebook {name} broke off {where}: {type(error).__name__}: {error}"
    _tidy(executed)
    write_atomically(partial, nbformat.writes(executed) + "\n")
    return ""


def _explain(layout: Layout, name: str, partial: Path, error: PapermillExecutionError) -> str:
    text = layout.text(name)
    cells = nbformat.read(partial, as_version=4).cells
    ours = [cell for cell in cells if cell.cell_type == "code" and not ADDED & tags(cell)]
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


def _tidy(notebook: NotebookNode) -> None:
    """Drop what names a machine or a moment, and fold the cell that papermill put in."""
    for holder in (notebook, *notebook.cells):
        for entry in ("papermill", "execution", "widgets"):
            holder.metadata.pop(entry, None)
    for cell in notebook.cells:
        if INJECTED in tags(cell):
            cell["id"] = "cell-parameters"
            cell.metadata["tags"] = [INJECTED, "hide-input"]
