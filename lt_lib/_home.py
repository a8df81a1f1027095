"""Where the project lies: the folder that holds `notebooks/`, `build/` and, by default, the run store."""

import os
from collections.abc import Sequence
from pathlib import Path


def project_root() -> Path:
    """Return `LT_HOME` if the environment sets it, else the folder above the `lt_lib` package."""
    named = os.environ.get("LT_HOME")
    return Path(named).expanduser().resolve() if named else Path(__file__).resolve().parent.parent


def places(
    file: str | Path, root: str | Path | None = None, folders: Sequence[Path] | None = None
) -> tuple[Path, ...]:
    """Return the absolute paths at which `file` is looked for, in order, without repetition.

    An absolute path is the only one. A relative one is taken from each of `folders`: by default the current
    one, then `project_root()`, since kernels of the book run in empty folders of their own. With a `root`,
    the file is taken from there alone, and a relative `root` is taken from each of `folders`.
    """
    relative = Path(root or "").expanduser() / Path(file).expanduser()
    bases = (Path.cwd(), project_root()) if folders is None else folders
    return tuple(dict.fromkeys((base / relative).absolute() for base in bases))


def existing(source: str, name: str | Path, root: str | Path | None, folder: bool = False) -> Path:
    """Return the first of `places(name, root)` that is there: a file, or with `folder` a folder.

    Raises:
        FileNotFoundError: none is; the sentence names `source` (such as "npz"), and where it was looked for.
    """
    looked = places(name, root)
    found = next((path for path in looked if (path.is_dir() if folder else path.is_file())), None)
    if found is None:
        where = " or ".join(f"`{path}`" for path in looked)
        raise FileNotFoundError(
            f"`{source}:{name}` must name an existing {'folder' if folder else 'file'}; found none at "
            f"{where}. Check the path, or write an absolute one."
        )
    return found
