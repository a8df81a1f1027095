"""Text notebooks to notebooks, and small facts about notebooks."""

import ast
import os
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from pipeline.layout import BuildError

INJECTED = "injected-parameters"  # papermill's tag


def convert(text: Path) -> NotebookNode:
    """Text notebook -> notebook without outputs; cell ids count up, so equal texts give equal notebooks.

    Raises:
        BuildError: the file is not UTF-8.
    """
    try:
        content = text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = text.read_bytes().count(b"\n", 0, error.start) + 1
        raise BuildError(f"{text} is not UTF-8: {error.reason} in line {line}; save it as UTF-8.") from None
    notebook = jupytext.reads(content, fmt=text.suffix)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return nbformat.from_dict(notebook)


def code_sources(notebook: NotebookNode) -> list[str]:
    """Sources of the code cells, in order."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def line_of(content: str, source: str) -> int | None:
    """Line, from 1, at which a cell's source begins in its text notebook; None if it is not found."""
    at = content.find(source.strip())
    return content.count("\n", 0, at) + 1 if at >= 0 else None


def indented(text: str) -> str:
    """The lines of a text, each moved in by four columns."""
    return "\n".join(f"    {row}" for row in text.splitlines())


def syntax_faults(text: Path, notebook: NotebookNode) -> list[str]:
    """For each code cell that is no Python: notebook, line, cell, source and error."""
    content = text.read_text(encoding="utf-8")
    found = []
    for number, source in enumerate(code_sources(notebook), 1):
        try:
            ast.parse(source)
        except (SyntaxError, ValueError) as error:  # ValueError: a null byte
            inside = getattr(error, "lineno", None) or 1
            start = line_of(content, source)
            line = f", line {start + inside - 1}" if start else ""
            found.append(
                f"Notebook {text.stem} cannot run: code cell {number} ({text}{line}) is not Python:\n"
                f"{indented(source)}\n  {type(error).__name__}: {getattr(error, 'msg', error)}\n"
                f"    {(getattr(error, 'text', None) or '').strip()}".rstrip()
            )
    return found


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
