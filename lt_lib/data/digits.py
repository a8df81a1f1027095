"""scikit-learn's handwritten digits: 1,797 real 8 x 8 images, shipped with the package."""

import numpy as np

from lt_lib.data.source import Source, source_from_arrays


def load_digits() -> Source:
    """Load the digits (174 to 183 images a class), grey levels 0..16 stretched to bytes, round(v * 255 / 16).

    The images come without a test part. Nothing is downloaded.
    """
    from sklearn.datasets import load_digits as bundled  # a second to import: only when it is asked for

    data = bundled()
    return source_from_arrays(
        "digits",
        np.rint(data.images * 255 / 16).astype(np.uint8),
        data.target,
        class_names=[str(c) for c in range(10)],
        note="UCI optical digits as bundled with scikit-learn, 8 x 8, levels 0..16 stretched to 0..255.",
    )
