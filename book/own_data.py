"""Your own images: run the page on your data on them, and make one file of it that any browser shows.

Usage: python book/own_data.py folder:DIR|csv:FILE|npz:FILE MINUTES [SIZE]
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lt_lib._home import existing
from pipeline.layout import ROOT, BuildError, Layout, kernel_environment
from pipeline.own_page import Refused, execute
from pipeline.progress import clock
from pipeline.single_page import write_figures, write_page

NAME = "15_your_data"
FOLDERS = {"folder": True, "csv": False, "npz": False}  # kinds of sources: whether each is a folder
USAGE = "make your-data DATA=folder:DIR MINUTES=15, with csv:FILE or npz:FILE for lists and arrays"


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    source: str  # with an absolute path
    minutes: float
    size: int | None
    folder: Path  # for the page and all that belongs to it


def wanted(arguments: Sequence[str], build: Path = ROOT / "build") -> Wanted:
    """Read DATA, MINUTES and SIZE; no file is opened.

    Raises:
        Refused: a number is none or out of range, or nothing is where DATA says.
    """
    if not 2 <= len(arguments) <= 3:
        found = " ".join(arguments) or "nothing"
        raise Refused(f"DATA and MINUTES are needed, SIZE may follow; found `{found}`. Write {USAGE}.")
    source, name = _source(arguments[0])
    minutes = _number(arguments[1], "MINUTES", 0.01, 1_000_000)
    size = int(_number(arguments[2], "SIZE", 1, 8192, whole=True)) if len(arguments) == 3 else None
    return Wanted(source, minutes, size, build / "your-data" / name)


def _source(data: str) -> tuple[str, str]:
    """DATA with an absolute path, and a name for what comes of it."""
    kind, _, place = data.partition(":")
    if kind not in FOLDERS and any(mark in data for mark in "/\\."):
        guess = "npz" if data.endswith(".npz") else "csv" if data.endswith(".csv") else "folder"
        raise Refused(
            f"DATA must say what it is; found `{data}`. Did you mean `{guess}:{data}`? Write {USAGE}."
        )
    if kind not in FOLDERS:
        return data, _plain(data)  # a name that the library knows, or refuses
    if not place:
        raise Refused(f"DATA names no path; found `{data}`. Write {USAGE}.")
    try:
        path = existing(kind, place, None, folder=FOLDERS[kind]).resolve()
    except OSError as error:
        raise Refused(str(error)) from None
    return f"{kind}:{path}", _plain(path.name if FOLDERS[kind] else path.stem)


def _plain(name: str) -> str:
    """A name for files: letters of any script, digits, and `_`, `-`, `.` inside."""
    kept = "".join(letter if letter.isalnum() or letter in "_-." else " " for letter in name)
    return "-".join(kept.split()).strip("-.") or "images"


def _number(text: str, name: str, low: float, high: float, whole: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise Refused(f"{name} must be {kind} from {low:g} to {high:,.0f}; found `{text}`.")
    return value


def run(asked: Wanted) -> None:
    """Run the page, write it down, and print what it advises and where all is.

    Raises:
        Refused: the page refused the data or the minutes before anything was trained; nothing is left of it.
        BuildError: a cell failed.
    """
    layout, began = Layout("digits"), time.monotonic()
    os.environ.update(kernel_environment(layout, threads=1), LT_BUILD=str(asked.folder))
    given = {"source": asked.source, "minutes": asked.minutes, "size": asked.size}
    executed = execute(layout.text(NAME), given, asked.folder)
    figures = asked.folder / "figures" / NAME  # where the page has put their data
    write_figures(executed, figures)
    made = write_page(executed, asked.folder / f"{asked.folder.name}.html")
    places = {"page": made, "notebook": made.with_suffix(".ipynb"), "figures and their data": figures}
    print(f"Done in {clock(time.monotonic() - began)}.\n", file=sys.stderr, flush=True)
    print(f"{advice(executed)}\n")
    for what, path in {**places, "model and its card": asked.folder / "my-model"}.items():
        print(f"{what}: {os.path.relpath(path)}")


def advice(executed: dict) -> str:
    """The table and advice that the page ends with, in Markdown."""
    cells = (cell for cell in executed["cells"] if "= recommend(" in cell["source"])
    outputs = [output for cell in cells for output in cell["outputs"]]
    return "\n\n".join(output["data"]["text/markdown"] for output in outputs if "data" in output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status: 2 if nothing was done, 1 if something failed on the way."""
    try:
        run(wanted(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        print("\nStopped. Trained networks are kept, for a plan with the same epochs.", file=sys.stderr)
        return 130
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, Refused) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
