"""House rules that a machine can check: notebooks, pages, pins, file sizes."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jupytext
import pytest
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
TEXTS = sorted((ROOT / "notebooks").glob("*.md"))
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)$")
GLUE = re.compile(r"\{glue:[a-z]*\}`([^`]+)`")
CODE_FOLDERS = ("lt_lib", "book", "tests", "benchmarks", "examples")
each_notebook = pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)


def code_cells(text: Path) -> list[NotebookNode]:
    return [cell for cell in jupytext.read(text).cells if cell.cell_type == "code"]


def requirement_lines() -> list[str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    return [line for line in lines if line]


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@each_notebook
def test_notebook_names_the_kernel_python3_and_no_jupytext_version(text: Path) -> None:
    header = yaml.safe_load(text.read_text(encoding="utf-8").split("---\n")[1])
    assert header["kernelspec"]["name"] == "python3"
    assert "jupytext_version" not in header["jupytext"]["text_representation"]
    assert header["jupytext"]["text_representation"]["format_name"] == "myst"
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", text.stem)


@each_notebook
def test_first_code_cell_alone_holds_the_parameters(text: Path) -> None:
    cells = code_cells(text)
    tagged = [i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == [0]
    assert re.search(r'^profile = "digits"', cells[0].source, re.MULTILINE)
    assert "profile" in cells[1].source, "the cell after the parameters must load the profile"


@each_notebook
def test_cells_are_few_and_short(text: Path) -> None:
    cells = code_cells(text)
    assert len(cells) <= 25
    long = [cell.source.splitlines()[0] for cell in cells if len(cell.source.splitlines()) > 20]
    assert not long, f"more than 20 lines: {long}"


@each_notebook
def test_code_runs_alike_everywhere(text: Path) -> None:
    lines = [line.rstrip() for cell in code_cells(text) for line in cell.source.splitlines()]
    # nbval runs cells without history, where IPython ignores a closing semicolon  # guards C1
    every = text.read_text(encoding="utf-8").splitlines()
    assert not [line for line in every if line.rstrip().endswith(";")]
    assert not [line for line in lines if line.lstrip().startswith(("!", "%"))]
    assert not [line for line in lines if re.search(r"\btqdm\b|\bpip install\b", line)]


@each_notebook
def test_figures_have_name_caption_alt_text_and_saved_data(text: Path) -> None:
    cells = code_cells(text)
    drawing = [c for c in cells if re.search(r"\bplt\.(subplots|figure|subplot_mosaic)\(", c.source)]
    for cell in drawing:
        first = cell.source.splitlines()[0]
        options = cell.metadata.get("mystnb", {})
        assert options.get("figure", {}).get("name"), f"no figure name at `{first}`"
        assert options.get("figure", {}).get("caption"), f"no caption at `{first}`"
        alt = options.get("image", {}).get("alt", "")
        assert len(alt) > 20, f"alt text must exceed 20 characters; found {len(alt)} at `{first}`"
    names = [cell.metadata["mystnb"]["figure"]["name"] for cell in drawing]
    assert len(names) == len(set(names))
    saved = sum(cell.source.count("save_figure_data(") for cell in cells)
    assert saved >= len(drawing), "save the data beside each figure by runs.save_figure_data"


def test_no_two_figures_of_the_book_share_a_name() -> None:
    sources = [text.read_text(encoding="utf-8") for text in TEXTS]
    names = [name for source in sources for name in re.findall(r"^ +name: (fig-\S+)$", source, re.MULTILINE)]
    assert len(names) > 20
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


@each_notebook
def test_glued_numbers_exist_and_carry_the_notebooks_number(text: Path) -> None:
    source = text.read_text(encoding="utf-8")
    used = {key for key in GLUE.findall(source) if "::" not in key}
    assert all(key.startswith(f"{text.stem[:2]}-") for key in used), sorted(used)


def test_no_notebook_with_outputs_is_committed_but_the_references() -> None:
    found = [name for name in tracked_files() if name.endswith(".ipynb")]
    assert all(name.startswith("tests/reference/") for name in found), found


def test_conda_environment_installs_the_pins_and_nothing_else() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, *rest = environment["dependencies"]
    assert re.fullmatch(r"python=3\.1[123]", python)
    assert rest == ["pip", {"pip": ["-r requirements.txt"]}]


def test_every_requirement_is_pinned_once_and_installed() -> None:
    pins = [PIN.match(line) for line in requirement_lines()]
    assert all(pins), "every line must read name==version"
    names = [match[1].lower() for match in pins if match]
    assert len(names) == len(set(names))
    wrong = {}
    for match in filter(None, pins):
        installed = metadata.version(match[1]).split("+")[0]  # +cpu, +cu130: the same release
        if installed != match[2]:
            wrong[match[1]] = f"{installed} is installed, {match[2]} is pinned"
    assert not wrong, f"{wrong}; run `make env`"


def test_supported_pythons_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.11,<3.14"' in project
    script = (ROOT / "book" / "environment.py").read_text(encoding="utf-8")
    assert "OLDEST, NEWEST = (3, 11), (3, 13)" in script


def test_files_of_code_stay_below_300_lines() -> None:
    files = [path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    long = [path.relative_to(ROOT).as_posix() for path in files if len(path.read_text().splitlines()) > 300]
    assert not long


def test_package_file_imports_nothing() -> None:
    # a run's fingerprint follows imports: whatever stood here would be part of every key
    assert "import " not in (ROOT / "lt_lib" / "__init__.py").read_text(encoding="utf-8").split('"""')[2]


def test_contents_list_every_notebook_and_every_page() -> None:
    sys.path.insert(0, str(ROOT / "book"))
    from pipeline.stage import toc_files

    entries = toc_files(ROOT / "_toc.yml")
    assert len(entries) == len(set(entries))
    pages = [f"notebooks/{text.stem}" for text in TEXTS]
    pages += [f"book/{page.stem}" for page in (ROOT / "book").glob("*.md")]
    assert sorted(entries) == sorted(pages)


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    described = re.findall(r"^([a-z-]+):[^#\n]*## .+$", makefile, re.MULTILINE)
    assert sorted(described) == sorted(phony.split())
