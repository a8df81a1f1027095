"""Where the project lies: the folder that holds `notebooks/`, `build/` and, by default, the run store."""

import os
from pathlib import Path


def project_root() -> Path:
    """Return `LT_HOME` if the environment sets it, else the folder above the `lt_lib` package."""
    named = os.environ.get("LT_HOME")
    return Path(named).expanduser().resolve() if named else Path(__file__).resolve().parent.parent


def places(file: str | Path, root: str | Path | None = None) -> tuple[Path, ...]:
    """Return the absolute paths at which `file` is looked for, in order, without repetition.

    An absolute path is the only one. A relative one is taken from the current folder, then from
    `project_root()`, since kernels of the book run in empty folders of their own. With a `root`, the file is
    taken from there alone, and a relative `root` is taken from these two folders.
    """
    relative = Path(root or "").expanduser() / Path(file).expanduser()
    return tuple(dict.fromkeys((folder / relative).absolute() for folder in (Path.cwd(), project_root())))
