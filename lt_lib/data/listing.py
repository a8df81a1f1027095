"""A reader's own image files by part, class and group, before any of them is opened."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lt_lib.data.decoding import is_gray
from lt_lib.data.disk import check_damaged, source_from_files
from lt_lib.data.files import ImageFiles
from lt_lib.data.source import Source


@dataclass(frozen=True)
class Files:
    """The files of one part."""

    names: tuple[str, ...]  # (n,) paths within the folder
    labels: NDArray[np.int64]  # (n,) 0..C-1
    groups: NDArray[np.int64] | None = None  # (n,)


@dataclass(frozen=True)
class Listing:
    """Which files belong to which part and class; each class has a training image."""

    name: str
    base: Path  # the folder that names start from
    parts: Mapping[str, Files]  # "train", and where they exist "calibration" and "test"
    class_names: tuple[str, ...]  # (C,)
    note: str

    def source(self, size: int = 64, memory_limit: int | None = None, damaged: str = "refuse") -> Source:
        """Open the files as a source; where each holds grey levels only, its images have one channel.

        Args:
            size: height and width of the images; the shorter side is resized to it and the centre cropped.
            memory_limit: see `source_from_files`.
            damaged: likewise.

        Raises:
            FileNotFoundError: a file is absent.
            ValueError: a file is no whole image, or all of a class are none.
        """
        check_damaged(damaged)
        paths = [self.base / name for files in self.parts.values() for name in files.names]
        channels = 1 if all(_may_be_gray(path, damaged) for path in paths) else 3
        opened = {
            part: (ImageFiles(self.base, files.names, size, channels), files.labels)
            for part, files in self.parts.items()
        }
        return source_from_files(
            self.name,
            opened["train"],
            opened.get("test"),
            self.class_names,
            self.note,
            memory_limit,
            self.parts["train"].groups,
            opened.get("calibration"),
            damaged,
        )


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key by which runs of digits compare as numbers; ties are broken by the name itself."""
    pieces = re.findall(r"\d+|\D+", unicodedata.normalize("NFC", name).casefold())
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces], name


def _may_be_gray(path: Path, damaged: str) -> bool:
    try:
        return is_gray(path)
    except ValueError:
        if damaged == "refuse" and path.exists():
            raise
        return True  # what is left out has no say; `ImageFiles` tells of what is absent
