"""Run one notebook through papermill; called in a process of its own, since papermill changes the folder."""

import logging
import shutil
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError, strip_color

from pipeline.convert import INJECTED, indented, line_of, tags, write_atomically
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
    if exit_error := _exit_error(executed):
        return _explain(layout, name, partial, exit_error)
    if unrun := _unrun(executed):
        return f"Notebook {name} ended before this code cell had run:\n{indented(unrun)}"
    _tidy(executed)
    write_atomically(partial, nbformat.writes(executed) + "\n")
    return ""


def _exit_error(executed: NotebookNode) -> PapermillExecutionError | None:
    """The cell that ended the run by `sys.exit(0)`: papermill takes that for success."""
    for index, cell in enumerate(executed.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error" and output.ename == "SystemExit":
                return PapermillExecutionError(
                    cell_index=index,
                    exec_count=cell.execution_count,
                    source=cell.source,
                    ename=output.ename,
                    evalue=output.evalue,
                    traceback=output.traceback,
                )
    return None


def _unrun(executed: NotebookNode) -> str:
    """Source of the first code cell that has not run, "" if all have; empty cells never run."""
    code = (cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip())
    return next((cell.source for cell in code if cell.execution_count is None), "")


def _explain(layout: Layout, name: str, partial: Path, error: PapermillExecutionError) -> str:
    text = layout.text(name)
    start = line_of(text.read_text(encoding="utf-8"), error.source)
    line = f", line {start}" if start else ""
    cells = nbformat.read(partial, as_version=4).cells
    ours = [cell for cell in cells if cell.cell_type == "code" and not ADDED & tags(cell)]
    number = next((i for i, c in enumerate(ours, 1) if any(o.output_type == "error" for o in c.outputs)), "?")
    trace = indented(strip_color("\n".join(error.traceback)))
    return (
        f"Notebook {name} failed with profile {layout.profile} in code cell {number} ({text}{line}):\n"
        f"{indented(error.source)}\n  {error.ename}: {error.evalue}\n{trace}\n"
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
