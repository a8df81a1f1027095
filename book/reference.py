"""Reference outputs of the notebooks with the digits profile.

Usage: python book/reference.py write | check
    write  rewrite tests/reference from the executed book, running what is stale
    check  run every notebook again by nbval and compare with tests/reference; its published numbers go to
           build/nbval, where `pytest --published` compares them with tolerances
"""

import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from build import build, prepare
from pipeline.layout import ROOT, BuildError, Layout, kernel_environment

FOLDER = ROOT / "tests" / "reference"
AGAIN = (
    ROOT / "build" / "nbval"
)  # stands for the project while notebooks run again: what they write goes here


def write() -> None:
    """Rewrite the references."""
    layout = Layout("digits")
    build(layout, run_only=True)
    from pipeline.reference import write_references

    write_references(layout, FOLDER)
    print(
        f"References in {FOLDER.relative_to(ROOT)} are up to date; look at `git diff` before you commit them."
    )


def check() -> None:
    """Refuse stale references, then run and compare.

    Raises:
        BuildError: a reference is missing, stale or differs from the run.
    """
    layout = Layout("digits")
    prepare(layout)
    import nbformat

    from pipeline.execute import LANES
    from pipeline.reference import nbval, stale_source

    references = [FOLDER / f"{text.stem}.ipynb" for text in layout.texts()]
    if missing := [path.name for path in references if not path.is_file()]:
        raise BuildError(f"No reference for {', '.join(missing)}; run `make reference`.")
    complaints = [
        stale_source(text, nbformat.read(path, as_version=4))
        for text, path in zip(layout.texts(), references, strict=True)
    ]
    if any(complaints):
        raise BuildError("\n".join(filter(None, complaints)))
    environment = _surroundings(layout)
    failures = []
    with ThreadPoolExecutor(LANES) as pool:
        for name, (status, report) in zip(
            (path.stem for path in references),
            pool.map(lambda path: nbval([path], environment), references),
            strict=True,
        ):
            print(f"nbval: {name} {'differs from' if status else 'agrees with'} its reference", flush=True)
            failures += [report] * bool(status)
    if failures:
        raise BuildError("\n".join(failures))


def _surroundings(layout: Layout) -> dict[str, str]:
    """The kernels' environment, with a project folder of their own but the same run store."""
    shutil.rmtree(AGAIN, ignore_errors=True)
    shutil.copytree(ROOT / "notebooks" / "profiles", AGAIN / "notebooks" / "profiles")
    store = os.environ.get("LT_RUNS", str(ROOT / "runs"))
    threads = int(os.environ["OMP_NUM_THREADS"])
    return {**kernel_environment(layout, threads), "LT_HOME": str(AGAIN), "LT_RUNS": store}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    commands = {"write": write, "check": check}
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1 or given[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        commands[given[0]]()
    except BuildError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
