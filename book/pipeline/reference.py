"""Reference notebooks: what is committed of an executed notebook, and how a run is compared with it."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

from pipeline.convert import INJECTED, convert, stderr_outputs, tags, write_atomically
from pipeline.layout import ROOT, BuildError, Layout
from pipeline.nbval_pictures import NOT_COMPARED

# For numbers without a declared tolerance, which do not depend on training: far finer than what the book
# prints, wide enough for solvers that stop at a tolerance of their own.
DEFAULT_RELATIVE, DEFAULT_ABSOLUTE = 1e-4, 1e-9
SANITISE = ROOT / "tests" / "notebooks" / "sanitise.cfg"
_PLACES = {str(place) for place in (ROOT, Path.home(), Path(tempfile.gettempdir()).resolve())} - {"/"}
MACHINE_TEXT = re.compile(
    "|".join([*map(re.escape, sorted(_PLACES)), "/home/", "/Users/", "/var/folders/", r"[A-Za-z]:\\\\Users"])
    + r"|ipykernel_\d+|\d{4}-\d\d-\d\dT\d\d:\d\d"
)


def reference_notebook(executed: NotebookNode) -> NotebookNode:
    """An executed notebook reduced to what nbval compares: no pictures, no injected cell, no machine.

    Every code cell keeps an execution count: nbval compares nothing in a cell that has none.
    """
    notebook = nbformat.v4.new_notebook()
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    count = 0
    for cell in executed.cells:
        if INJECTED in tags(cell):
            continue
        kept = nbformat.from_dict({"cell_type": cell.cell_type, "id": cell.id, "source": cell.source})
        kept.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if tags(cell) else {})
        if cell.cell_type == "code":
            count += 1
            kept.execution_count = count
            kept.outputs = _merged([_reference_output(output, count) for output in cell.outputs])
        notebook.cells.append(kept)
    return notebook


def _reference_output(output: NotebookNode, count: int) -> NotebookNode:
    kept = nbformat.from_dict(dict(output))
    if "data" in kept:
        kept.data = nbformat.from_dict({k: v for k, v in kept.data.items() if k not in NOT_COMPARED})
        glued = kept.metadata.get("scrapbook")
        kept.metadata = nbformat.from_dict({"scrapbook": glued} if glued else {})
    if "execution_count" in kept:
        kept.execution_count = count
    return kept


def _merged(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of one stream: where a kernel cuts its text is chance."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and output.get("name") == last.get("name"):
            last.text += output.text
        else:
            joined.append(output)
    return joined


def stale_source(text: Path, reference: NotebookNode) -> str:
    """Why a reference does not belong to a text notebook any more; "" while it does."""
    ours = [(c.cell_type, c.source, sorted(tags(c))) for c in convert(text).cells]
    theirs = [(c.cell_type, c.source, sorted(tags(c))) for c in reference.cells]
    way_out = "run `make reference` and look at what it changes"
    if len(ours) != len(theirs):
        return f"{text.name} has {len(ours)} cells, its reference {len(theirs)}; {way_out}."
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if mine != other:
            first = mine[1].splitlines()[0] if mine[1] else "(empty)"
            return f"{text.name}, cell {number} (`{first}`) differs from its reference; {way_out}."
    return ""


def faults(path: Path, limit: int = 400_000) -> list[str]:
    """What must not be in a committed reference: traces of a machine or a moment, uncompared cells, bulk."""
    raw = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(raw, as_version=4)
    found = [f"names a machine or a moment: {text}" for text in dict.fromkeys(MACHINE_TEXT.findall(raw))]
    found += [f"cell {n} wrote to stderr: {text.strip()[:200]}" for n, text in stderr_outputs(notebook)]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if any(cell.execution_count is None for cell in code):
        found.append("has code cells without execution count, which nbval would not compare")
    if any(
        name in output.get("data", {}) for cell in code for output in cell.outputs for name in NOT_COMPARED
    ):
        found.append("holds pictures")
    if (size := len(raw.encode())) >= limit:
        found.append(f"has {size} bytes, allowed are fewer than {limit}")
    return [f"{path.name} {fault}" for fault in found]


def flat(numbers: object, name: str = "") -> dict[str, object]:
    """Nested published numbers as dotted names: {"a": {"b": [1, 2]}} -> {"a.b.0": 1, "a.b.1": 2}."""
    if isinstance(numbers, dict):
        items = [(str(key), value) for key, value in numbers.items()]
    elif isinstance(numbers, list):
        items = [(str(key), value) for key, value in enumerate(numbers)]
    else:
        return {name: numbers}
    parts = [flat(value, f"{name}.{key}" if name else key) for key, value in items]
    return {key: value for part in parts for key, value in part.items()}


def tolerances(path: Path) -> dict[str, dict[str, float]]:
    """Notebook -> {pattern of a dotted name: absolute tolerance} from tolerances.yaml."""
    declared = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return {
        name: {str(k): float(v) for k, v in (entries or {}).items()} for name, entries in declared.items()
    }


def differences(found: object, reference: object, allowed: dict[str, float]) -> list[str]:
    """Where published numbers leave their tolerances; texts, booleans and whole numbers must be equal.

    The first matching pattern of `allowed` counts, for whole numbers too; numbers without one must agree to
    `DEFAULT_RELATIVE` of the larger.
    """
    ours, theirs = flat(found), flat(reference)
    lines = [f"{name} is published, but not in the reference" for name in ours.keys() - theirs.keys()]
    lines += [f"{name} is in the reference, but not published" for name in theirs.keys() - ours.keys()]
    for name in ours.keys() & theirs.keys():
        if complaint := _difference(ours[name], theirs[name], _allowed(name, allowed)):
            lines.append(f"{name}: {complaint}")
    return sorted(lines)


def _allowed(name: str, allowed: dict[str, float]) -> float | None:
    return next((value for pattern, value in allowed.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _difference(ours: object, theirs: object, tolerance: float | None) -> str:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (ours, theirs))
    if not numbers or (tolerance is None and isinstance(ours, int) and isinstance(theirs, int)):
        return "" if ours == theirs else f"{ours!r} now, {theirs!r} in the reference"
    limit = tolerance
    if limit is None:
        limit = DEFAULT_RELATIVE * max(abs(ours), abs(theirs)) + DEFAULT_ABSOLUTE
    if abs(ours - theirs) <= limit or (ours != ours and theirs != theirs):  # nan agrees with nan
        return ""
    return f"{ours} now, {theirs} in the reference, allowed is a difference of {limit:.3g}"


def write_references(layout: Layout, folder: Path) -> None:
    """Rewrite the committed references from an executed book.

    Raises:
        BuildError: a reference would hold something that must not be committed; nothing is replaced then.
    """
    draft = layout.build / "reference.part"
    shutil.rmtree(draft, ignore_errors=True)
    complaints: list[str] = []
    for text in layout.texts():
        executed = nbformat.read(layout.run / f"{text.stem}.ipynb", as_version=4)
        path = draft / f"{text.stem}.ipynb"
        write_atomically(path, nbformat.writes(reference_notebook(executed)) + "\n")
        complaints += faults(path)
        if (numbers := layout.published / f"{text.stem}.json").is_file():
            content = json.dumps(
                json.loads(numbers.read_text(encoding="utf-8")), indent=1, sort_keys=True, ensure_ascii=False
            )
            write_atomically(draft / "published" / numbers.name, content + "\n")
    if complaints:
        raise BuildError("These references cannot be committed:\n" + "\n".join(complaints))
    for pattern in ("*.ipynb", "published/*.json"):
        for old in folder.glob(pattern):
            old.unlink()
        for new in draft.glob(pattern):
            target = folder / new.relative_to(draft)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(new, target)
    shutil.rmtree(draft)


def nbval(notebooks: Sequence[Path], environment: dict[str, str], timeout: int = 600) -> tuple[int, str]:
    """Run notebooks again and compare their text outputs; returns pytest's status and its report."""
    command = [
        *(sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "pipeline.nbval_pictures"),
        *("-c", str(SANITISE.with_name("nbval.ini")), f"--rootdir={notebooks[0].parent}"),
        *("-p", "no:cacheprovider", "-q", "--color=no"),
        *("--nbval-sanitize-with", str(SANITISE), "--nbval-cell-timeout", str(timeout)),
        *map(str, notebooks),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    return done.returncode, done.stdout
