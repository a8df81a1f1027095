"""A small book of its own: two notebooks and two pages in a temporary folder, built by the real pipeline."""

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""
ONE = (
    HEADER
    + """
# One

```{code-cell} ipython3
:tags: [parameters]

profile = "digits"
```

```{code-cell} ipython3
from myst_nb import glue

answer = 6 * 7
glue("00-answer", f"{answer}")
print("profile", profile, "answer", answer)
```

The answer is {glue:text}`00-answer`, since $6 \\\\cdot 7 = 42$.
"""
).replace("\\\\", "\\")
TWO = (
    HEADER
    + """
# Two

```{code-cell} ipython3
:tags: [parameters]

profile = "digits"
```

```{code-cell} ipython3
---
mystnb:
  figure:
    name: fig-line
    caption: A line.
  image:
    alt: A line that rises.
---
import matplotlib.pyplot as plt

from lt_lib._home import project_root

fig, ax = plt.subplots(figsize=(3, 2))
_ = ax.plot([0, 1], [0, 1])
```
"""
)
TOC = "format: jb-book\nroot: book/intro\nchapters:\n- file: notebooks/00_one\n- file: notebooks/01_two\n"


@pytest.fixture
def small_book(tmp_path: Path) -> Path:
    """The folder of a small book."""
    for folder in ("book/_static", "notebooks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "notebooks" / "00_one.md").write_text(ONE, encoding="utf-8")
    (tmp_path / "notebooks" / "01_two.md").write_text(TWO, encoding="utf-8")
    (tmp_path / "book" / "intro.md").write_text("# Intro\n\nSee {numref}`fig-line`, $x^2$.\n")
    (tmp_path / "book" / "references.bib").write_text("", encoding="utf-8")
    (tmp_path / "_toc.yml").write_text(TOC, encoding="utf-8")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "book" / "_static" / "book.css", tmp_path / "book" / "_static")
    shutil.copytree(ROOT / "notebooks" / "profiles", tmp_path / "notebooks" / "profiles")
    return tmp_path
