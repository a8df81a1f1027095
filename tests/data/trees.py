"""Small image files in the layouts that the sources expect."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int = 0, height: int = 10, width: int = 12, channels: int = 3) -> Path:
    """Write one small random image; its suffix decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width, channels) if channels > 1 else (height, width)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).save(path)
    return path


def truncate(path: Path) -> None:
    """Cut a file in half."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
