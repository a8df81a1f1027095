"""Each step of the build on a small book: what runs again, what a failure says, what is left behind."""

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.api_docs import escape_bars
from pipeline.convert import convert
from pipeline.keys import (
    book_modules,
    committed_results,
    data_digest,
    imported_names,
    library_modules,
    notebook_key,
    pins,
)
from pipeline.layout import ROOT, BuildError, Layout
from pipeline.offline import remote_loads
from pipeline.progress import Progress, clock
from pipeline.stage import planned_files, toc_files

Build = Callable[..., subprocess.CompletedProcess[str]]


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_book_is_whole_and_names_no_machine(first_build: tuple[Path, str]) -> None:
    root, printed = first_build
    layout = Layout("digits", root)
    assert f"Open {layout.html / 'index.html'}" in printed
    page = (layout.html / "notebooks" / "00_one.html").read_text(encoding="utf-8")
    assert 'The answer is <span class="pasted-text">42</span>' in page
    assert 'src="../_static/mathjax/tex-mml-chtml.js' in page
    assert (layout.html / "_static/mathjax/output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff").is_file()
    assert "Fig. 1" in (layout.html / "book" / "intro.html").read_text(encoding="utf-8")
    download = layout.html / "_sources" / "notebooks" / "00_one.ipynb"
    assert str(root) not in download.read_text(encoding="utf-8")


def test_only_what_changed_runs_and_a_failure_spares_the_last_book(
    built_book: Path, build_book: Build
) -> None:
    layout = Layout("digits", built_book)
    page = (layout.html / "notebooks" / "00_one.html").read_bytes()
    again = build_book(built_book)
    assert again.returncode == 0
    assert "Unchanged: 00_one, 01_two" in again.stdout
    assert "Rendered" not in again.stdout
    rewrite(built_book / "notebooks" / "00_one.md", "6 * 7", "6 * 7 + missing")
    broken = build_book(built_book)
    assert broken.returncode == 1
    assert "Unchanged: 01_two" in broken.stdout
    for part in ("00_one.md, line 22", "code cell 2", "answer = 6 * 7 + missing", "NameError"):
        assert part in broken.stderr
    assert "'42'" in (layout.run / "00_one.ipynb").read_text(encoding="utf-8")
    assert page == (layout.html / "notebooks" / "00_one.html").read_bytes()


def test_a_warning_fails_the_build_every_time(built_book: Path, build_book: Build) -> None:
    page = (Layout("digits", built_book).html / "book" / "intro.html").read_bytes()
    rewrite(built_book / "book" / "intro.md", "fig-line", "fig-nowhere")
    for _ in range(2):  # an incremental Sphinx build would forget the warning
        done = build_book(built_book)
        assert done.returncode == 1
        assert "fig-nowhere" in done.stderr
    assert page == (Layout("digits", built_book).html / "book" / "intro.html").read_bytes()


def test_an_unknown_profile_is_one_sentence(small_book: Path, build_book: Build) -> None:
    done = build_book(small_book, "--profile", "digist")
    assert done.returncode == 1
    assert "found `digist`. Did you mean `digits`?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (small_book / "build").exists()


def test_missing_data_are_one_sentence_before_any_notebook_runs(small_book: Path, build_book: Build) -> None:
    profiles = small_book / "notebooks" / "profiles"
    settings = yaml.safe_load((profiles / "cifar10.yaml").read_text(encoding="utf-8")) | {"root": "nowhere"}
    (profiles / "lacking.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    done = build_book(small_book, "--profile", "lacking")
    assert done.returncode == 1
    assert "The profile `lacking` cannot run yet. CIFAR-10 must lie in a local folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert "running" not in done.stdout
    assert not list((small_book / "build").rglob("*.ipynb"))


@pytest.mark.parametrize("root", [None, "data"])
def test_a_key_follows_the_pixels_of_a_readers_file(small_book: Path, root: str | None) -> None:
    layout = Layout("mine", small_book)
    text, folder = layout.text("00_one"), small_book / (root or "")
    folder.mkdir(exist_ok=True)
    settings = yaml.safe_load((layout.notebooks / "profiles" / "digits.yaml").read_text(encoding="utf-8"))
    profile = layout.notebooks / "profiles" / "mine.yaml"
    profile.write_text(yaml.safe_dump(settings | {"data": "npz:mine.npz", "root": root}), encoding="utf-8")
    keys = [notebook_key(text, [], layout, {})]
    for brightness in (0, 1, 0):
        np.savez(folder / "mine.npz", train_images=np.full((2, 4, 4), brightness, np.uint8))
        os.utime(folder / "mine.npz", ns=(len(keys), len(keys)))  # clocks of file systems are coarse
        keys.append(notebook_key(text, [], layout, {}))
    assert len(set(keys[:3])) == 3  # absent, dark, brighter
    assert keys[1] == keys[3]
    assert data_digest(profile, "00_one", small_book / "elsewhere") == "absent"


def test_a_key_follows_committed_results_where_they_are_read(tmp_path: Path) -> None:
    table = tmp_path / "book" / "results" / "fashion" / "05_x.runs.csv"
    table.parent.mkdir(parents=True)
    table.write_text("key\n", encoding="utf-8")
    assert committed_results(['folder = Path(figures.__file__).parent / "results"'], tmp_path) == [table]
    assert committed_results(["results = 3"], tmp_path) == []


def test_a_key_follows_the_files_of_a_readers_folder(small_book: Path) -> None:
    profile, image = small_book / "mine.yaml", small_book / "mine" / "cat" / "0.png"
    profile.write_text("data: folder:mine\n", encoding="utf-8")
    digests = [data_digest(profile, "00_one", small_book)]
    image.parent.mkdir(parents=True)
    for content in (b"pixels", b"other pixels"):
        image.write_bytes(content)
        digests.append(data_digest(profile, "00_one", small_book))
    image.rename(image.with_name("1.png"))
    digests.append(data_digest(profile, "00_one", small_book))
    assert digests[0] == "absent"
    assert len(set(digests)) == 4


def test_a_key_follows_the_data_of_the_notebooks_own_section(small_book: Path) -> None:
    profile = small_book / "mine.yaml"
    profile.write_text("data: digits\nnotebooks: {01_two: {data: 'npz:mine.npz'}}\n", encoding="utf-8")
    (small_book / "mine.npz").write_bytes(b"pixels")
    assert data_digest(profile, "00_one", small_book) == ""
    assert data_digest(profile, "01_two", small_book) == hashlib.sha256(b"pixels").hexdigest()
    profile.write_text("data: [", encoding="utf-8")
    assert data_digest(profile, "01_two", small_book) == ""  # the library says what is wrong


def test_keys_are_made_without_torch() -> None:
    code = "import sys, pipeline.keys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "book", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_contents_and_notebooks_must_agree(small_book: Path) -> None:
    layout = Layout("digits", small_book)
    with pytest.raises(BuildError, match=r"do not exist: notebooks/00_one, notebooks/01_two"):
        planned_files(layout)
    layout.run.mkdir(parents=True)
    for name in ("00_one", "01_two", "02_extra"):
        (layout.run / f"{name}.ipynb").write_text("{}", encoding="utf-8")
    with pytest.raises(BuildError, match="does not name these notebooks: notebooks/02_extra"):
        planned_files(layout)


def test_tables_of_benchmarks_are_parts_of_pages(small_book: Path) -> None:
    layout = Layout("digits", small_book)
    layout.run.mkdir(parents=True)
    for name in ("00_one", "01_two"):
        (layout.run / f"{name}.ipynb").write_text("{}", encoding="utf-8")
    results = small_book / "benchmarks" / "results"
    results.mkdir(parents=True)
    for name in ("speed.md", "speed.svg", "raw.json"):
        (results / name).touch()
    plan = planned_files(layout)
    found = {name: path.name for name, path in plan.items() if path.parent == results}
    assert found == {"book/results/speed.txt": "speed.md", "book/results/speed.svg": "speed.svg"}


def test_toc_files_are_found_in_parts_and_sections(tmp_path: Path) -> None:
    toc = tmp_path / "_toc.yml"
    toc.write_text(
        "root: a\nparts:\n- caption: P\n  chapters:\n  - file: b\n    sections: [{file: c}]\n",
        encoding="utf-8",
    )
    assert toc_files(toc) == ["a", "b", "c"]


def test_imports_of_a_notebook_are_read_from_its_code() -> None:
    code = [
        "import numpy as np\nfrom lt_lib import runs, data as d",
        "def f():\n    from figures import style",
    ]
    names = imported_names(code)
    assert {"numpy", "lt_lib", "lt_lib.runs", "lt_lib.data", "figures", "figures.style"} == names
    assert library_modules(names) == ["lt_lib", "lt_lib.data", "lt_lib.runs"]
    assert book_modules(names) == [ROOT / "book" / "figures.py"]


def test_pins_are_read_without_comments() -> None:
    assert pins("# a==1\nb==2.0\nc-d==3.post1 # why\n\n") == {"b": "2.0", "c-d": "3.post1"}


def test_equal_texts_give_equal_notebooks(small_book: Path) -> None:
    text = small_book / "notebooks" / "00_one.md"
    assert convert(text) == convert(text)


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<script src="//cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img src="http://img.example/a.png">',
        '<img srcset="a.png 1x, https://img.example/b.png 2x">',
        "<style>@import 'https://fonts.example/css';</style>",
        '<p style="background: url(https://img.example/a.png)">',
        '<script>const SOURCE = "https://unpkg.example/x.js"</script>',
        '<iframe src="https://video.example/1"></iframe>',
    ],
)
def test_remote_loads_are_found(tmp_path: Path, html: str) -> None:
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert len(remote_loads(tmp_path)) == 1


def test_links_and_local_files_are_no_loads(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://arxiv.org/abs/1">paper</a><script src="../_static/x.js"></script>'
        '<link rel="canonical" href="https://book.example/"><svg xmlns="http://www.w3.org/2000/svg"></svg>',
        encoding="utf-8",
    )
    (tmp_path / "page.css").write_text("@font-face { src: url(font.woff2) }", encoding="utf-8")
    assert remote_loads(tmp_path) == []
    (tmp_path / "page.css").write_text("@font-face { src: url(https://f.example/font.woff2) }")
    assert remote_loads(tmp_path) == ["page.css: https://f.example/font.woff2"]


def test_progress_estimates_from_the_last_durations() -> None:
    stream = io.StringIO()
    with Progress({"a": 10.0, "b": 30.0, "c": 50.0}, lanes=2, stream=stream) as progress:
        assert progress.remaining() == 50.0  # c alone takes as long
        progress.start("c")
        progress.start("a")
        assert progress.remaining() == pytest.approx(50.0, abs=1.0)
        progress.end("c")
        assert progress.remaining() == pytest.approx(30.0, abs=1.0)
    assert "a: running | 0:00 elapsed, 0:50 remaining" in stream.getvalue()
    assert "[1/3] c: done in 0:00" in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_progress_without_history_says_so_and_learns() -> None:
    stream = io.StringIO()
    with Progress({"a": None, "b": None}, stream=stream) as progress:
        assert progress.remaining() is None
        progress.start("a")
        progress.end("a", "failed")
        assert progress.remaining() == pytest.approx(0.0, abs=1.0)
    assert "remaining time unknown" in stream.getvalue()
    assert "a: failed" in stream.getvalue()


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3661)] == ["0:00", "1:00", "1:01", "1:01:01"]


def test_bars_in_docstrings_are_escaped_outside_literals() -> None:
    assert escape_bars("sum |a - b| of ``x | y`` and `u | v`") == r"sum \|a - b\| of ``x | y`` and `u | v`"
