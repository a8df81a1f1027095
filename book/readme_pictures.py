"""Copy two figures of the executed digits book to the README: run after `make book` when they have changed.

Usage: python book/readme_pictures.py
"""

import base64
import io
from pathlib import Path

import nbformat
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
WANTED = {"fig-00-classes": "classes.png", "fig-00-inverse": "inverse.png"}  # figure -> file


def main() -> None:
    """Write the pictures, in few colours so that they stay small."""
    notebook = nbformat.read(ROOT / "build" / "digits" / "run" / "00_in_pictures.ipynb", as_version=4)
    for cell in notebook.cells:
        name = WANTED.get(cell.metadata.get("mystnb", {}).get("figure", {}).get("name", ""))
        pictures = [
            o["data"]["image/png"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})
        ]
        if name and pictures:
            picture = Image.open(io.BytesIO(base64.b64decode(pictures[0]))).convert("RGB")
            small = picture.quantize(128, dither=Image.Dither.NONE)
            small.save(ROOT / "book" / "_static" / "readme" / name, optimize=True)


if __name__ == "__main__":
    main()
