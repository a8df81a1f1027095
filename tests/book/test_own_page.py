"""The page on a reader's own data as one command: what is refused, what is left, what the page holds."""

import base64
import re
from pathlib import Path

import nbformat
import pytest

import own_data
from lt_lib import runs
from pipeline.layout import BuildError, Layout, kernel_environment
from pipeline.own_page import Refused, execute
from pipeline.single_page import main, write_figures

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PAGE = f"""---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
# A page

See [the guide](../book/your-data), $x^2$.

```{{code-cell}} ipython3
:tags: [parameters]

source = minutes = None
```

## Look

```{{code-cell}} ipython3
if source == "refused":
    raise ValueError("`source` must be good; found `refused`.")
```

## Train

```{{code-cell}} ipython3
from IPython.display import Image, Markdown
from myst_nb import glue

def compare_methods(plan):
    glue("00-answer", 6 / int(plan != "broken"), display=False)

compare_methods(plan=source)
Markdown("| method |\\n| --- |\\n| CE |")
```

The answer is {{glue:text}}`00-answer`.

```{{code-cell}} ipython3
---
mystnb:
  figure:
    name: fig-dot
    caption: A dot.
  image:
    alt: One dot.
---
import base64

Image(data=base64.b64decode("{PIXEL}"))
```
"""


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in kernel_environment(Layout("digits"), threads=1).items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "00_page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_a_page_is_one_file_that_needs_nothing_else(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "your-data" / "mine"
    executed = execute(text, {"source": "good", "minutes": 1}, folder)
    write_figures(executed, folder / "figures")
    assert main([str(folder / "mine.ipynb")]) == 0
    page = (folder / "mine.html").read_text(encoding="utf-8")
    assert re.search("The answer is <[^>]*>6.0</[^>]*>[.]", page)
    assert "See the guide, <math" in page
    assert "<figcaption" in page
    assert re.search(r"<td>\s*(<p>)?CE", page)
    assert page.count("<details>") == 5  # four cells, and the parameters that were put in
    assert re.findall(r'src="(.{22})', page) == ["data:image/png;base64,"]
    assert not re.search(r'<(script|link)|href="(?!#|https://docutils)', page)
    assert (folder / "figures" / "fig-dot.png").read_bytes() == base64.b64decode(PIXEL)
    assert sorted(path.name for path in folder.iterdir()) == ["figures", "mine.html", "mine.ipynb"]


def test_a_refusal_leaves_nothing_and_a_crash_its_notebook(text: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "your-data" / "mine"
    with pytest.raises(Refused, match=r"^`source` must be good; found `refused`\.$"):
        execute(text, {"source": "refused", "minutes": 1}, folder)
    assert not folder.parent.exists()
    with pytest.raises(BuildError, match="in its part `Train`: ZeroDivisionError: division") as found:
        execute(text, {"source": "broken", "minutes": 1}, folder)
    assert not isinstance(found.value, Refused)
    partial = folder / "partial.ipynb"
    assert str(found.value).endswith("partial.ipynb")
    assert "division by zero" in str(nbformat.read(partial, as_version=4).cells)
    told = capsys.readouterr().err
    assert [line.partition("] ")[2] for line in told.splitlines()][-3:] == ["A page", "Look", "Train"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "found `nothing`"),
        (["images/cats", "15"], "Did you mean `folder:images/cats`"),
        (["cats.csv", "15"], "Did you mean `csv:cats.csv`"),
        (["folder:", "15"], "DATA names no path"),
        (["folder:nowhere", "15"], "`folder:nowhere` must name an existing folder"),
        (["csv:nowhere", "15"], "`csv:nowhere` must name an existing file"),
        (["digits", "soon"], "MINUTES must be a number from 0.01 to 1,000,000; found `soon`"),
        (["digits", "nan"], "MINUTES must be a number"),
        (["digits", "15", "6.5"], "SIZE must be a whole number from 1 to 8,192; found `6.5`"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_before_anything_starts(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_data.main(arguments) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


def test_paths_become_absolute_and_names_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Stoffe & {кольца}").mkdir()
    (tmp_path / "liste.v2.csv").write_text("path,label\n")
    asked = own_data.wanted(["folder:Stoffe & {кольца}", "2", "32"], tmp_path)
    assert asked.source == f"folder:{tmp_path.resolve() / 'Stoffe & {кольца}'}"
    assert asked.folder == tmp_path / "your-data" / "Stoffe-кольца"
    assert (asked.minutes, asked.size) == (2, 32)
    assert own_data.wanted(["csv:liste.v2.csv", "0.5"], tmp_path).folder.name == "liste.v2"


def test_what_a_page_writes_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LT_BUILD", str(tmp_path))
    assert runs.build_folder() == tmp_path
    assert runs.build_folder("digits").parts[-2:] == ("build", "digits")
