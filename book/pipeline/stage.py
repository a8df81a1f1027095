"""Gather the source tree that Sphinx renders: pages, executed notebooks, configuration, bundled MathJax."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import yaml

from pipeline.keys import digest, files_digest, installed_versions
from pipeline.layout import ROOT, BuildError, Layout
from pipeline.status import write_status

MATHJAX_PARTS = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2/*.woff", "input/tex/extensions/*.js")
LICENCES = ("LICENSE",)


def toc_files(toc: Path) -> list[str]:
    """Every page that the contents file names, the root first."""
    found: list[str] = []

    def visit(node: object) -> None:
        if isinstance(node, dict):
            found.extend(str(node[key]) for key in ("root", "file") if key in node)
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    visit(yaml.safe_load(toc.read_text(encoding="utf-8")))
    return found


def mathjax_files() -> dict[str, Path]:
    """Files of MathJax that pages need, from the wheel: path below vendor/mathjax -> file."""
    spec = find_spec("mathjax")  # the module of django-static-mathjax; Django itself is not needed
    if spec is None or spec.origin is None:
        raise BuildError("MathJax is not installed (wheel django-static-mathjax); `make env` installs it.")
    root = Path(spec.origin).parent / "static" / "mathjax"
    found = {
        path.relative_to(root / "es5").as_posix(): path
        for part in MATHJAX_PARTS
        for path in sorted((root / "es5").glob(part))
    }
    if "tex-mml-chtml.js" not in found or not any(name.endswith(".woff") for name in found):
        raise BuildError(
            f"MathJax at `{root}` lacks its program or its fonts; reinstall django-static-mathjax."
        )
    return {**found, **{name: root / name for name in LICENCES}}


def planned_files(layout: Layout) -> dict[str, Path]:
    """The whole staged tree: path below the staged folder -> file to copy there.

    Raises:
        BuildError: the contents file names a page that does not exist, or lacks an executed notebook.
    """
    root, book = layout.root, layout.root / "book"
    plan = {name: root / name for name in ("_config.yml", "_toc.yml")}
    for path in (*book.glob("*.md"), *book.glob("*.bib"), *_static_files(book / "_static")):
        plan[f"book/{path.relative_to(book).as_posix()}"] = path
    plan |= {f"notebooks/{path.name}": path for path in layout.run.glob("*.ipynb")}
    plan |= {f"vendor/mathjax/{name}": path for name, path in mathjax_files().items()}
    plan |= {f"extra/figures/{p.relative_to(layout.figures).as_posix()}": p for p in _data(layout)}
    plan["book/status_table.txt"] = layout.status
    plan |= _benchmarks(root / "benchmarks" / "results")
    plan["extra/.nojekyll"] = Path(__file__).with_name("nojekyll")
    _check_contents(toc_files(root / "_toc.yml"), plan)
    return plan


def _benchmarks(results: Path) -> dict[str, Path]:
    """Tables and pictures of benchmarks; a table is text that some page includes, not a page itself."""
    tables = {f"book/results/{path.stem}.txt": path for path in results.glob("*.md")}
    return tables | {f"book/results/{path.name}": path for path in results.glob("*.svg")}


def _data(layout: Layout) -> list[Path]:
    stems = {path.stem for path in layout.run.glob("*.ipynb")}
    return [path for path in layout.figures.glob("*/*.csv") if path.parent.name in stems]


def _static_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and "readme" not in p.relative_to(folder).parts]


def _check_contents(entries: list[str], plan: dict[str, Path]) -> None:
    missing = [e for e in entries if not any(f"{e}{suffix}" in plan for suffix in ("", ".md", ".ipynb"))]
    if missing:
        raise BuildError(f"_toc.yml names pages that do not exist: {', '.join(missing)}.")
    absent = [
        name.removesuffix(".ipynb")
        for name in plan
        if name.startswith("notebooks/") and name.removesuffix(".ipynb") not in entries
    ]
    if absent:
        raise BuildError(f"_toc.yml does not name these notebooks: {', '.join(absent)}.")


def stage(layout: Layout) -> str:
    """Make the staged tree equal to the plan; returns the key of what the rendered book is made from."""
    write_status(layout)
    plan = planned_files(layout)
    for name, path in plan.items():
        target = layout.staged / name
        if not target.is_file() or target.read_bytes() != path.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.part")
            shutil.copyfile(path, partial)
            os.replace(partial, target)
    for path in layout.staged.rglob("*"):
        if path.is_file() and path.relative_to(layout.staged).as_posix() not in plan:
            path.unlink()
    return render_key(layout)


def render_key(layout: Layout) -> str:
    """Key of the rendered book: staged tree, the library's text (for the API page), build code, versions."""
    staged = sorted(path for path in layout.staged.rglob("*") if path.is_file())
    code = sorted([*(ROOT / "lt_lib").rglob("*.py"), *Path(__file__).parent.glob("*.py")])
    return digest(
        files_digest(staged, layout.staged),
        *(path.name for path in code),
        *(path.read_bytes() for path in code),
        repr(sorted(installed_versions().items())),
    )
