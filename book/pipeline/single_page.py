"""An executed notebook as one HTML file that needs neither network nor other files."""

import argparse
import base64
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from docutils.core import publish_string
from myst_nb.docutils_ import Parser
from nbformat import NotebookNode

from pipeline.convert import write_atomically
from pipeline.layout import BuildError
from pipeline.offline import remote_loads

STYLE = Path(__file__).resolve().parents[1] / "_static" / "single_page.css"
RELATIVE = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)\s]+\)")  # a link to another page of the book
INPUT = re.compile(r'<div class="cell_input [^>]*>(.*?</pre>\s*)</div>', re.DOTALL)


def write_page(executed: NotebookNode, html: Path) -> Path:
    """Write an executed notebook as one HTML file, and return its path.

    Links to other pages become their texts, pictures are part of the file, code is folded.

    Raises:
        BuildError: something is missing on the page, or it would load something from the network.
    """
    messages = io.StringIO()
    rendered = _rendered(_alone(executed), html, messages)
    if messages.getvalue():
        raise BuildError(f"The page does not render without warnings:\n{messages.getvalue()}")
    write_atomically(html, INPUT.sub(r"<details><summary>Code</summary>\1</details>", rendered))
    loads = [line for line in remote_loads(html.parent) if line.startswith(f"{html.name}: ")]
    if loads:
        raise BuildError(
            "The page must load nothing remote, but:\n" + "\n".join(f"  {line}" for line in loads)
        )
    return html


def write_figures(executed: NotebookNode, folder: Path) -> None:
    """Write every figure of an executed notebook as `folder`/<its name>.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in executed.cells:
        name = cell.metadata.get("mystnb", {}).get("figure", {}).get("name")
        pictures = [output.get("data", {}).get("image/png") for output in cell.get("outputs", [])]
        for picture in filter(None, pictures if name else []):
            (folder / f"{name}.png").write_bytes(base64.b64decode(picture))


def _alone(executed: NotebookNode) -> NotebookNode:
    """A copy without links to other pages."""
    copy = nbformat.from_dict(executed)
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = RELATIVE.sub(r"\1", cell.source)
    return copy


def _rendered(notebook: NotebookNode, html: Path, messages: io.StringIO) -> str:
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "nb_execution_mode": "off",
            "nb_output_folder": folder,
            "nb_merge_streams": True,
            "nb_render_markdown_format": "gfm",  # tables in outputs, as in the book
            "myst_enable_extensions": ["amsmath", "dollarmath", "colon_fence", "deflist"],
            "image_loading": "embed",
            "math_output": "MathML",  # what browsers draw by themselves
            "stylesheet_path": ["minimal.css", "plain.css", str(STYLE)],
            "embed_stylesheet": True,
            "output_encoding": "unicode",
            "warning_stream": messages,
            "halt_level": 5,
            "_disable_config": True,
        }
        return publish_string(
            nbformat.writes(notebook),
            source_path=html.with_suffix(".ipynb").name,
            destination_path=str(html),
            parser=Parser(),
            writer_name="html5_polyglot",
            settings_overrides=settings,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: write an executed notebook's page beside it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path, help="an executed notebook, such as build/mine.ipynb")
    notebook = parser.parse_args(arguments).notebook
    print(write_page(nbformat.read(notebook, as_version=4), notebook.with_suffix(".html")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
