"""Where the files of a data set may lie."""

import os
from collections.abc import Sequence
from pathlib import Path

from lt_lib._home import places


def data_roots(root: str | Path | None) -> tuple[Path, ...]:
    """Return the folders to look into: `root`, else the one named by the environment variable LT_DATA.

    A relative one is taken from the current folder, then from the project's.
    """
    named = os.environ.get("LT_DATA") if root is None else root
    return places("", named) if named else ()


def read_text(path: Path) -> str:
    """Read a list or a table as UTF-8.

    Raises:
        ValueError: it is none.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`{path}` must be a text in UTF-8; found the byte {error.object[error.start]:#04x} at "
            f"{error.start}. Save it as UTF-8, or fetch the file again."
        ) from error


def find_folder(
    root: str | Path | None, layouts: Sequence[str], files: Sequence[str], what: str, ways: str
) -> Path:
    """Return the first folder among `layouts` (below each root) that holds all `files`.

    Args:
        root: as in `data_roots`.
        layouts: folders relative to a root; "" is the root itself.
        files: names of files or folders.
        what: the data set, for messages.
        ways: a sentence or two on how to get the files.

    Raises:
        FileNotFoundError: no folder holds all; says what is missing, and `ways`.
    """
    folders = [base / layout for base in data_roots(root) for layout in layouts]
    held = [sum((folder / file).exists() for file in files) for folder in folders]
    if not held or not max(held):
        looked = ", ".join(f"`{folder}`" for folder in folders) or "no folder, since none was named"
        raise FileNotFoundError(
            f"{what} must lie in a local folder that holds `{files[0]}`; looked into {looked}. {ways}"
        )
    best = folders[held.index(max(held))]
    lacking = [file for file in files if not (best / file).exists()]
    if lacking:
        raise FileNotFoundError(f"`{best}` must hold `{lacking[0]}` of {what}; it is missing. {ways}")
    return best
