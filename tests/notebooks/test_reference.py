"""The committed reference outputs: fresh, clean, and able to catch a wrong number."""

import copy
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from pipeline.convert import INJECTED, convert
from pipeline.layout import ROOT, BuildError, Layout, kernel_environment
from pipeline.reference import (
    differences,
    faults,
    flat,
    nbval,
    reference_notebook,
    stale_source,
    tolerances,
    write_references,
)

REFERENCE = ROOT / "tests" / "reference"
TEXTS = Layout("digits").texts()
MARKDOWN = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Tiny

```{code-cell} ipython3
:tags: [parameters]

profile = "digits"
```

```{code-cell} ipython3
from myst_nb import glue
glue("tiny", "0.25", display=False)
print("half", 0.5)
```
"""


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_reference_source_is_the_notebook(text: Path) -> None:
    path = REFERENCE / f"{text.stem}.ipynb"
    assert path.is_file(), f"no reference for {text.stem}: run `make reference`"
    assert stale_source(text, nbformat.read(path, as_version=4)) == ""


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_reference_is_fit_to_be_committed(text: Path) -> None:
    assert faults(REFERENCE / f"{text.stem}.ipynb") == []


def test_no_reference_without_a_notebook() -> None:
    names = {text.stem for text in TEXTS}
    assert {path.stem for path in REFERENCE.glob("*.ipynb")} <= names
    assert {path.stem for path in REFERENCE.glob("published/*.json")} <= names
    assert set(tolerances(REFERENCE / "tolerances.yaml")) <= names


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_published_numbers_stay_within_their_tolerances(text: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--published"):
        pytest.skip("compares what the last nbval run published; `make test` runs both")
    name = f"{text.stem}.json"
    again = ROOT / "build" / "nbval" / "build" / "digits" / "published" / name
    committed = REFERENCE / "published" / name
    assert again.is_file() == committed.is_file(), f"{name}: published now or in the reference, not both"
    if committed.is_file():
        ours, theirs = (json.loads(path.read_text(encoding="utf-8")) for path in (again, committed))
        allowed = tolerances(REFERENCE / "tolerances.yaml").get(text.stem, {})
        assert differences(ours, theirs, allowed) == []


@pytest.fixture
def tiny(tmp_path: Path) -> NotebookNode:
    """A tiny reference notebook with right outputs."""
    (tmp_path / "00_tiny.md").write_text(MARKDOWN, encoding="utf-8")
    notebook = convert(tmp_path / "00_tiny.md")
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    glued = {"scrapbook": {"name": "tiny", "mime_prefix": "application/papermill.record/"}}
    last.outputs = [
        nbformat.v4.new_output(
            "display_data", {"application/papermill.record/text/plain": "'0.25'"}, metadata=glued
        ),
        nbformat.v4.new_output("stream", name="stdout", text="half 0.5\n"),
    ]
    return reference_notebook(notebook)


def test_nbval_accepts_right_numbers_and_catches_wrong_ones(tiny: NotebookNode, tmp_path: Path) -> None:
    printed, glued = copy.deepcopy(tiny), copy.deepcopy(tiny)
    printed.cells[-1].outputs[1].text = "half 0.51\n"
    glued.cells[-1].outputs[0].data["application/papermill.record/text/plain"] = "'0.26'"
    paths = [tmp_path / f"{name}.ipynb" for name in ("right", "printed", "glued")]
    for notebook, path in zip((tiny, printed, glued), paths, strict=True):
        nbformat.write(notebook, path)
    status, report = nbval(paths, kernel_environment(Layout("digits", tmp_path), threads=1))
    assert status == 1
    # pytest repeats the reason in its summary when the environment says CI
    assert report.count("Cell outputs differ") in (2, 4)
    failed = re.findall(r"^FAILED .*?(\w+)\.ipynb::Cell (\d)", report, re.MULTILINE)
    assert failed == [("printed", "1"), ("glued", "1")], report
    assert "2 failed, 4 passed" in report


def test_stale_reference_source_is_refused(tiny: NotebookNode, tmp_path: Path) -> None:
    text = tmp_path / "00_tiny.md"
    assert stale_source(text, tiny) == ""
    text.write_text(MARKDOWN.replace("0.5", "0.50"), encoding="utf-8")
    assert "00_tiny.md, cell 3 (`from myst_nb import glue`) differs from its reference; run `make ref" in (
        stale_source(text, tiny)
    )
    text.write_text(MARKDOWN + "\nmore prose\n", encoding="utf-8")
    assert "has 4 cells, its reference 3; run `make reference`" in stale_source(text, tiny)


def test_reference_drops_pictures_and_the_injected_cell() -> None:
    figure = nbformat.v4.new_output(
        "display_data", {"image/png": "AAAA", "text/plain": "<Figure size 1x1>"}, metadata={"image": {"w": 1}}
    )
    glued = nbformat.v4.new_output("display_data", {"application/papermill.record/image/png": "AAAA"})
    injected = nbformat.v4.new_code_cell("profile = 'x'", metadata={"tags": [INJECTED]})
    cell = nbformat.v4.new_code_cell("plot()", outputs=[figure, glued], execution_count=7)
    notebook = reference_notebook(nbformat.v4.new_notebook(cells=[injected, cell]))
    assert [c.source for c in notebook.cells] == ["plot()"]
    assert notebook.cells[0].execution_count == 1
    assert [dict(output.data) for output in notebook.cells[0].outputs] == [
        {"text/plain": "<Figure size 1x1>"},
        {},
    ]
    assert notebook.cells[0].outputs[0].metadata == {}


def test_where_a_kernel_cuts_its_text_leaves_no_trace() -> None:
    def kept(*pieces: tuple[str, str]) -> list[tuple[str, str]]:
        outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in pieces]
        shown = nbformat.v4.new_output("display_data", {"text/plain": "table"})
        cell = nbformat.v4.new_code_cell("talk()", outputs=[*outputs, shown, *outputs], execution_count=1)
        notebook = reference_notebook(nbformat.v4.new_notebook(cells=[cell]))
        assert [output.text for output in outputs] == [text for _, text in pieces]  # the source is left alone
        return [(output.get("name"), output.get("text")) for output in notebook.cells[0].outputs]

    whole = [("stdout", "one\ntwo\n")]
    assert kept(("stdout", "one\n"), ("stdout", "two\n")) == kept(*whole) == [*whole, (None, None), *whole]
    mixed = [("stdout", "one\n"), ("stderr", "!"), ("stdout", "two\n")]
    assert kept(*mixed) == [*mixed, (None, None), *mixed]


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("in /home/someone/file", "names a machine or a moment"),
        ("ipykernel_1234", "names a machine or a moment"),
        ("2026-01-31T12:00:00", "names a machine or a moment"),
        ("x" * 500_000, "bytes, allowed are fewer than"),
    ],
)
def test_faulty_references_are_named(tiny: NotebookNode, tmp_path: Path, output: str, complaint: str) -> None:
    tiny.cells[-1].outputs[1].text = output
    nbformat.write(tiny, tmp_path / "tiny.ipynb")
    (fault,) = faults(tmp_path / "tiny.ipynb")
    assert complaint in fault


def test_faults_include_warnings_and_uncompared_cells(tiny: NotebookNode, tmp_path: Path) -> None:
    tiny.cells[-1].outputs[1].name = "stderr"
    tiny.cells[-2].execution_count = None
    nbformat.write(tiny, tmp_path / "tiny.ipynb")
    stderr, uncompared = faults(tmp_path / "tiny.ipynb")
    assert "cell 2 wrote to stderr: half 0.5" in stderr
    assert "nbval would not compare" in uncompared


def test_references_are_replaced_only_when_all_are_clean(tmp_path: Path) -> None:
    layout = Layout("digits", tmp_path)
    layout.notebooks.mkdir()
    layout.run.mkdir(parents=True)
    (layout.notebooks / "00_tiny.md").write_text(MARKDOWN, encoding="utf-8")
    notebook = convert(layout.text("00_tiny"))
    nbformat.write(notebook, layout.run / "00_tiny.ipynb")
    layout.published.mkdir()
    (layout.published / "00_tiny.json").write_text('{"b": 1, "a": 2}', encoding="utf-8")
    folder = tmp_path / "reference"
    write_references(layout, folder)
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*")) == [
        "00_tiny.ipynb",
        "published/00_tiny.json",
    ]
    before = (folder / "00_tiny.ipynb").read_bytes()
    notebook.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="Warning: x\n")]
    nbformat.write(notebook, layout.run / "00_tiny.ipynb")
    with pytest.raises(BuildError, match=r"00_tiny\.ipynb cell 2 wrote to stderr: Warning: x"):
        write_references(layout, folder)
    assert (folder / "00_tiny.ipynb").read_bytes() == before


def test_published_numbers_are_compared_by_name_with_tolerances() -> None:
    reference = {"rho": {"ce": [0.5, 0.25]}, "n": 10, "holds": True, "name": "x"}
    assert flat(reference) == {"rho.ce.0": 0.5, "rho.ce.1": 0.25, "n": 10, "holds": True, "name": "x"}
    assert differences(reference, reference, {}) == []
    found = {"rho": {"ce": [0.52, 0.25]}, "n": 10, "holds": True, "name": "x"}
    assert differences(found, reference, {"rho.*": 0.03}) == []
    (line,) = differences(found, reference, {"rho.ce.0": 0.01})
    assert line == "rho.ce.0: 0.52 now, 0.5 in the reference, allowed is a difference of 0.01"
    assert len(differences(found, reference, {})) == 1
    (line,) = differences({**reference, "holds": False}, reference, {"*": 5.0})
    assert line == "holds: False now, True in the reference"
    assert differences({**reference, "n": 11}, reference, {}) == ["n: 11 now, 10 in the reference"]
    assert differences({**reference, "n": 11}, reference, {"n": 1}) == []
    added = {**reference, "more": 1}
    assert differences(added, reference, {}) == ["more is published, but not in the reference"]
    assert differences(reference, added, {}) == ["more is in the reference, but not published"]
    assert differences({"x": 1e-12}, {"x": 2e-30}, {}) == []
    assert differences({"x": float("nan")}, {"x": float("nan")}, {}) == []
    assert len(differences({"x": float("nan")}, {"x": 1.0}, {"x": 1.0})) == 1
    assert len(differences({"x": None}, {"x": 1.0}, {"x": 1.0})) == 1


def test_kernels_run_with_fixed_threads_and_the_drawing_module() -> None:
    environment = kernel_environment(Layout("digits"), threads=1)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    assert str(ROOT / "book") in environment["PYTHONPATH"].split(os.pathsep)
