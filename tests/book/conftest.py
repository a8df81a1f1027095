"""A small book of its own: two notebooks and two pages in a temporary folder, built by the real pipeline."""

import shutil
import subprocess
import sys
from collections.abc import Callable
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
TOC = """format: jb-book
root: book/intro
chapters:
- file: notebooks/00_one
- file: notebooks/01_two
- file: book/status
"""


def write_small_book(folder: Path) -> Path:
    """Write the sources of a small book."""
    for name in ("book/_static", "notebooks"):
        (folder / name).mkdir(parents=True)
    (folder / "notebooks" / "00_one.md").write_text(ONE, encoding="utf-8")
    (folder / "notebooks" / "01_two.md").write_text(TWO, encoding="utf-8")
    (folder / "book" / "intro.md").write_text("# Intro\n\nSee {numref}`fig-line`, $x^2$.\n")
    (folder / "book" / "references.bib").write_text("", encoding="utf-8")
    (folder / "_toc.yml").write_text(TOC, encoding="utf-8")
    shutil.copy(ROOT / "_config.yml", folder)
    shutil.copy(ROOT / "book" / "status.md", folder / "book")
    for name in ("book.css", "logo.svg"):
        shutil.copy(ROOT / "book" / "_static" / name, folder / "book" / "_static")
    shutil.copytree(ROOT / "notebooks" / "profiles", folder / "notebooks" / "profiles")
    return folder


def build(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the book in `root` as `make book` does."""
    command = [sys.executable, str(ROOT / "book" / "build.py"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", stdin=subprocess.DEVNULL)


@pytest.fixture
def small_book(tmp_path: Path) -> Path:
    """The folder of a small book, not built."""
    return write_small_book(tmp_path / "book")


@pytest.fixture(scope="session")
def first_build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small book built once, and what the build printed; tests work on copies."""
    root = write_small_book(tmp_path_factory.mktemp("small") / "book")
    done = build(root)
    assert done.returncode == 0, done.stderr
    return root, done.stdout


@pytest.fixture
def built_book(first_build: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the built book: keys hold contents, not places, so it is as fresh as the original."""
    return Path(shutil.copytree(first_build[0], tmp_path / "copy"))


@pytest.fixture
def build_book() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The function `build`."""
    return build
