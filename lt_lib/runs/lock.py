"""One lock file a run: the system frees it when its holder ends, kill -9 included."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path, poll: float = 0.05) -> Iterator[None]:
    """Hold the lock `path` during the block, waiting as long as another process (or thread) holds it.

    The empty file stays behind; only who holds the lock may delete it. `poll` is in seconds.

    Raises:
        OSError: the file cannot be made or locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while (handle := _acquire(path)) is None:
        time.sleep(poll)
    try:
        yield
    finally:
        _release(handle)


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold the lock `path` during the block if nobody holds it, and say whether that is so.

    Raises:
        OSError: the file cannot be made or locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            _release(handle)


def _acquire(path: Path) -> int | None:
    """Return the handle of the lock, or None if it is not to be had at the moment."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _try_lock(handle):
            if _is_there(handle, path):
                return handle
            _unlock(handle)
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _is_there(handle: int, path: Path) -> bool:
    """Say whether `path` still is the locked file: who held it before may have deleted it."""
    if sys.platform == "win32":  # where an open file cannot be deleted
        return True
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _release(handle: int) -> None:
    try:
        _unlock(handle)
    finally:
        os.close(handle)
