"""What is in image files, cheaply: a digest of each file from the bytes that a change of its pixels moves."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WHOLE = 2**16  # bytes; a file up to this size is read from end to end
ENDS = 2**12  # bytes read at each end of a larger one
# these may be stored without compression, where a pixel moves its own bytes alone: read from end to end
UNCOMPRESSED = (".bmp", ".pgm", ".ppm", ".tif", ".tiff")
_BLOCK = 512  # files a task


def content_digests(root: Path, names: Sequence[str], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return 16 bytes of SHA-256 for each file, (n, 16).

    A file of at most 64 KiB, or of a format that may lie uncompressed, is read whole; of a larger one the
    first and the last 4 KiB are read. There a changed pixel moves what follows it in the compressed stream,
    and in a PNG the checksum at its end; a JPEG that was edited in its middle so that neither its size nor
    its ends change is the case that goes unseen. Times of files do not count, so a copy is the same data.

    Raises:
        FileNotFoundError: a file is gone.
    """
    digests = np.empty((len(names), 16), dtype=np.uint8)

    def fill(start: int) -> None:
        for i in range(start, min(start + _BLOCK, len(names))):
            digests[i] = np.frombuffer(_digest(root, names[i], int(sizes[i])), dtype=np.uint8)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(fill, range(0, len(names), _BLOCK)))
    return digests


def _digest(root: Path, name: str, size: int) -> bytes:
    try:
        with open(os.path.join(root, name), "rb", buffering=0) as file:  # a Path takes longer
            if size <= WHOLE or name.lower().endswith(UNCOMPRESSED):
                return hashlib.file_digest(file, "sha256").digest()[:16]
            ends = file.read(ENDS)
            file.seek(-ENDS, os.SEEK_END)
            return hashlib.sha256(ends + file.read(ENDS)).digest()[:16]
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"`{name}` must lie in `{root}`; it was there before and is gone. Put it back."
        ) from error
