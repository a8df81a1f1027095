"""scikit-learn's handwritten digits: 1,797 real 8 x 8 images, shipped with the package."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lt_lib.data.source import Source, source_from_arrays


def load_digits() -> Source:
    """Load the digits (174 to 183 images a class), grey levels 0..16 stretched to bytes, round(v * 255 / 16).

    The images come without a test part. Nothing is downloaded.
    """
    table = _table()  # (n, 65): 64 grey levels and the digit
    return source_from_arrays(
        "digits",
        np.rint(table[:, :-1].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8),
        table[:, -1].astype(np.int64),
        class_names=[str(c) for c in range(10)],
        note="UCI optical digits as bundled with scikit-learn, 8 x 8, levels 0..16 stretched to 0..255.",
    )


def _table() -> NDArray[np.float64]:
    """Read scikit-learn's file itself: importing the package takes longer than a whole epoch on it."""
    found = find_spec("sklearn")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits as bundled

    data = bundled()
    return np.column_stack([data.data, data.target])
