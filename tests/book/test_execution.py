"""Running notebooks: what a killed, stopped or second build leaves, and what a failing cell says."""

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest

from pipeline import execute, kernel
from pipeline.layout import ROOT, BuildError, Layout
from pipeline.progress import Progress

PROFILES = ROOT / "notebooks" / "profiles"
HEAD = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{code-cell} ipython3
:tags: [parameters]

profile = ""
```
"""
SLEEP = """
import os, time
from pathlib import Path
Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {os.getppid()}")
time.sleep(60)
"""
# `make book` without the library's check of the profile, which imports torch (seconds)
BUILD = f"""
import sys
sys.path.insert(0, {str(ROOT / "book")!r})
import build
from pipeline import execute
execute.check_profile = lambda layout: None
sys.exit(build.main(["--run-only", "--root", sys.argv[1]]))
"""


def write(layout: Layout, *cells: str, name: str = "00_tiny") -> Path:
    """Write a text notebook with these code cells after the parameters."""
    text = layout.text(name)
    body = "".join(f"\n```{{code-cell}} ipython3\n{cell.strip()}\n```\n" for cell in cells)
    text.write_text(HEAD + body, encoding="utf-8")
    return text


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """An empty book, whose profile passes for checked."""
    monkeypatch.setattr(execute, "check_profile", lambda layout: None)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    profiles = tmp_path / "notebooks" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "digits.yaml").write_bytes((PROFILES / "digits.yaml").read_bytes())
    return Layout("digits", tmp_path)


def start(layout: Layout) -> subprocess.Popen[str]:
    """Start a build of its own process."""
    pids = str(layout.root / "pids")
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(layout.root)],
        env={**os.environ, "PIDS": pids},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def sleeping_build(layout: Layout) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A build whose notebook sleeps, and the ids of kernel and worker."""
    write(layout, SLEEP)
    pids = layout.root / "pids"
    with start(layout) as process:
        try:
            wait_until(lambda: pids.is_file() and len(pids.read_text().split()) == 2, process)
            yield process, [int(pid) for pid in pids.read_text().split()]
        finally:
            process.kill()


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = 30.0
) -> None:
    """Poll a condition; fails when it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.05)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no SIGKILL")
@pytest.mark.parametrize(("number", "status"), [("SIGKILL", -9), ("SIGTERM", 143), ("SIGINT", 130)])
def test_no_worker_and_no_kernel_outlives_its_build(layout: Layout, number: str, status: int) -> None:
    with sleeping_build(layout) as (process, pids):
        assert not any(map(gone, pids))
        process.send_signal(getattr(signal, number))  # to the build alone, not to its group
        assert process.wait(timeout=10) == status
        wait_until(lambda: all(map(gone, pids)), seconds=10)
    assert not list(layout.run.glob("*.ipynb"))
    assert not list(layout.run.glob("*.key.json"))


def test_a_second_build_waits_for_the_first(layout: Layout) -> None:
    write(layout, "def f(:")  # so that the second build soon ends
    with execute.sole_build(layout), execute.sole_build(layout):  # a build may nest its own
        second = start(layout)
        assert second.stdout.readline().startswith("Another build of profile digits is running; waiting")
        assert second.poll() is None
    out, error = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "is not Python" in error
    assert "Another build" not in out


def test_an_executed_notebook_that_somebody_overwrote_runs_again(
    layout: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, "print('right')")
    assert execute.run_notebooks(layout) == ["00_tiny"]
    executed = layout.run / "00_tiny.ipynb"
    assert execute.run_notebooks(layout) == []
    assert "Unchanged: 00_tiny" in capsys.readouterr().out
    assert not list((layout.run / ".partial").iterdir())
    executed.write_text(executed.read_text(encoding="utf-8").replace("right", "wrong"), encoding="utf-8")
    monkeypatch.setattr(execute, "_run_all", lambda layout, names, keys: None)
    assert execute.run_notebooks(layout) == ["00_tiny"]


def test_a_worker_that_is_killed_is_named(layout: Layout) -> None:
    write(layout, "import os, signal\nos.kill(os.getppid(), getattr(signal, 'SIGKILL', signal.SIGTERM))")
    with pytest.raises(BuildError, match="Notebook 00_tiny broke off: the process that ran it was killed"):
        execute.run_notebooks(layout)


def test_a_syntax_error_names_notebook_cell_and_line_before_anything_runs(layout: Layout) -> None:
    write(layout, "1 + 1")
    text = write(layout, "x = 1\ny = (2 +* 3)", "def f(:\n    pass", name="01_broken")
    with pytest.raises(BuildError) as caught:
        execute.run_notebooks(layout)
    message = str(caught.value)
    line = text.read_text(encoding="utf-8").splitlines().index("y = (2 +* 3)") + 1
    assert f"Notebook 01_broken cannot run: code cell 2 ({text}, line {line}) is not Python:" in message
    for part in ("    x = 1\n    y = (2 +* 3)\n  SyntaxError: invalid syntax", "code cell 3"):
        assert part in message
    assert not layout.run.exists()


def test_a_notebook_that_is_not_utf8_is_one_sentence(layout: Layout) -> None:
    text = write(layout, "print('caf\u00e9')")
    content = text.read_text(encoding="utf-8")
    text.write_bytes(content.encode("latin-1"))
    line = content[: content.index("\u00e9")].count("\n") + 1
    with pytest.raises(BuildError, match=rf"00_tiny.md is not UTF-8: .* in line {line}; save it as UTF-8.$"):
        execute.run_notebooks(layout)


def test_a_cell_that_exits_with_success_has_failed(layout: Layout) -> None:
    text = write(layout, "import sys\nsys.exit(0)", "print('never')")
    with pytest.raises(BuildError) as caught:
        execute.run_notebooks(layout)
    line = text.read_text(encoding="utf-8").splitlines().index("import sys") + 1
    for part in (f"in code cell 2 ({text}, line {line}):", "    sys.exit(0)\n  SystemExit: 0\n"):
        assert part in str(caught.value)
    assert not list(layout.run.glob("00_tiny*"))


def test_a_cell_that_never_ran_is_found() -> None:
    ran, empty, left = (nbformat.v4.new_code_cell(source) for source in ("1", "", "2"))
    ran.execution_count = 1
    notebook = nbformat.v4.new_notebook(cells=[ran, empty, nbformat.v4.new_markdown_cell("text")])
    assert kernel._unrun(notebook) == ""
    notebook.cells.append(left)
    assert kernel._unrun(notebook) == "2"


def test_a_long_run_says_that_it_goes_on_where_no_bar_is_drawn() -> None:
    stream = io.StringIO()
    with Progress({"a": 100.0, "b": 100.0}, lanes=2, stream=stream, repeat=0.05) as progress:
        progress.start("a")
        progress.start("b")
        wait_until(
            lambda: stream.getvalue().count("a, b: still running | 0:00 elapsed, 1:40 remaining\n") > 1
        )
    written = stream.getvalue()
    time.sleep(0.15)
    assert written == stream.getvalue()
    assert "\r" not in written


@pytest.mark.parametrize("victim", [".key.json", "src"])
def test_a_full_disk_is_one_sentence_and_finished_notebooks_stay(
    layout: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    import build

    monkeypatch.setattr(build, "prepare", lambda layout: None)
    write(layout, "print('one')")
    assert execute.run_notebooks(layout) == ["00_tiny"]
    write(layout, "print('two')", name="01_more")
    whole = execute.write_atomically

    def full(path: Path, content: str) -> None:
        if victim in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        whole(path, content)

    monkeypatch.setattr(execute, "write_atomically", full)
    assert build.main(["--run-only", "--root", str(layout.root)]) == 1
    said = capsys.readouterr().err
    assert "cannot be written (No space left on device). Free some space" in said
    assert "Traceback" not in said
    monkeypatch.setattr(execute, "write_atomically", whole)
    assert execute.run_notebooks(layout) == ["01_more"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no SIGKILL")
def test_a_killed_build_goes_on_from_its_last_finished_notebook(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, "print('one')")
    assert execute.run_notebooks(layout) == ["00_tiny"]
    whole = {path.name: path.read_bytes() for path in layout.run.iterdir() if path.is_file()}
    write(layout, SLEEP, name="01_sleeps")
    pids = layout.root / "pids"
    with start(layout) as process:
        wait_until(lambda: pids.is_file() and len(pids.read_text().split()) == 2, process, 60.0)
        process.kill()
        process.wait()
    wait_until(lambda: all(map(gone, map(int, pids.read_text().split()))), seconds=10)
    assert {name: (layout.run / name).read_bytes() for name in whole} == whole
    write(layout, "print('awake')", name="01_sleeps")
    assert execute.run_notebooks(layout) == ["01_sleeps"]
    assert not list((layout.run / ".partial").iterdir())
