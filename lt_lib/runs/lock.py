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

    The empty file stays behind: to delete it could free a lock that somebody else has just taken.
    `poll` is in seconds.

    Raises:
        OSError: the file cannot be made or locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while not _try_lock(handle):
            time.sleep(poll)
        try:
            yield
        finally:
            _unlock(handle)
    finally:
        os.close(handle)
