"""Long-tailed data: sources by name, disjoint splits, class counts and statistics of imbalance.

Images are bytes (or floats in 0..1) in channels-first tensors; labels run from 0 to C - 1. Everything random
takes the data seed, which is apart from the training seed. Nothing is downloaded unless it is asked for.
"""

from lt_lib.data.catalogue import DATA_NAMES, check_data_files, check_data_name, load
from lt_lib.data.counts import Imbalance, exponential_counts, imbalance_statistics, step_counts
from lt_lib.data.files import ImageFiles
from lt_lib.data.pairs import PairSource
from lt_lib.data.sampling import DRAWS, long_tail, normalisation, split
from lt_lib.data.source import Part, Source, Split, source_from_arrays

__all__ = [
    "DATA_NAMES",
    "DRAWS",
    "ImageFiles",
    "Imbalance",
    "PairSource",
    "Part",
    "Source",
    "Split",
    "check_data_files",
    "check_data_name",
    "exponential_counts",
    "imbalance_statistics",
    "load",
    "long_tail",
    "normalisation",
    "source_from_arrays",
    "split",
    "step_counts",
]
