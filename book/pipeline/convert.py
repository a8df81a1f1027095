"""Text notebooks to notebooks, and small facts about notebooks."""

import os
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

INJECTED = "injected-parameters"  # papermill's tag


def convert(text: Path) -> NotebookNode:
    """Text notebook -> notebook without outputs; cell ids count up, so equal texts give equal notebooks."""
    notebook = jupytext.read(text)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return nbformat.from_dict(notebook)


def code_sources(notebook: NotebookNode) -> list[str]:
    """Sources of the code cells, in order."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


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


def write_atomically(path: Path, content: str) -> None:
    """Write a text file so that it is either whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(content, encoding="utf-8", newline="\n")
    os.replace(partial, path)
