"""Writing files whole or not at all, with one sentence when the disk refuses."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}


class StoreError(OSError):
    """The run store cannot be written, or holds something that it cannot set aside."""


@contextmanager
def explained(root: Path, built: bool = False) -> Iterator[None]:
    """Turn an operating-system error into one sentence that says what to do about the store at `root`.

    With `built`, `root` is a folder below `build` of the project, which LT_RUNS does not move.

    Raises:
        StoreError: in place of any OSError of the block.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if built:
            text = (
                f"The folder {root} of published numbers and figures cannot be written ({reason}). Make it "
                "writable and free some space, or set LT_HOME to a copy of the project where you may write."
            )
        elif error.errno in _READ_ONLY:
            text = (
                f"The run store {root} cannot be written ({reason}). Set the environment variable LT_RUNS to "
                "a folder that you may write to, or pass `store=Store(folder)`."
            )
        elif error.errno in _FULL:
            text = (
                f"The disk of the run store {root} is full ({reason}). Free some space or set LT_RUNS to a "
                "folder on another disk, and start again: finished epochs are kept, nothing is half written."
            )
        else:
            text = f"The run store {root} failed: {error}. Check the folder, or set LT_RUNS to another one."
        raise StoreError(error.errno or errno.EIO, text) from error


def sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes, sync: bool = True) -> None:
    """Write a new file; with `sync`, on return it has reached the disk."""
    with path.open("wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def replace(path: Path, content: bytes, sync: bool = True) -> None:
    """Write `content` to `path` by atomic rename: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_bytes(draft, content, sync)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable, where the system can (Windows cannot open a folder)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
