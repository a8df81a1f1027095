"""The data by name."""

from pathlib import Path

from lt_lib._checks import check_choice
from lt_lib.data.digits import load_digits
from lt_lib.data.idx import load_fashion_mnist
from lt_lib.data.npz import load_npz
from lt_lib.data.pairs import PairSource
from lt_lib.data.source import Source

DATA_NAMES = ("digits", "digit_pairs", "fashion_mnist", "fashion_pairs", "npz:FILE")
# as many images a class as CIFAR-100 has; all pairs of garments would fill a gigabyte
_PAIR_LIMIT = 500


def check_data_name(name: str) -> None:
    """Refuse a data name that `load` does not know, without loading anything.

    Raises:
        ValueError: the name is unknown; the known ones and the closest are listed.
    """
    if isinstance(name, str) and name.startswith("npz:") and len(name) > len("npz:"):
        return
    check_choice("" if name == "npz:FILE" else name, DATA_NAMES, "name")


def load(name: str, root: str | Path | None = None, download: bool = False) -> Source | PairSource:
    """Load a source by name.

    | name | images | classes |
    | --- | --- | --- |
    | `digits` | scikit-learn's digits, 8 x 8, about 180 a class, no test part | 10 |
    | `digit_pairs` | two digits side by side, 8 x 16, each part composed of its own digits | 100 |
    | `fashion_mnist` | Fashion-MNIST, 28 x 28, 6,000 + 1,000 a class | 10 |
    | `fashion_pairs` | two garments side by side, 28 x 56, at most 500 a class in a part | 100 |
    | `npz:FILE` | your own, see `load_npz` | C |

    Args:
        name: one of the names above.
        root: folder of Fashion-MNIST (see `load_fashion_mnist`) or of a relative `npz:` path, which is
            otherwise taken from the current folder, then from the project's.
        download: let Fashion-MNIST be fetched into `root`; nothing is downloaded otherwise.

    Raises:
        ValueError: the name is unknown, or the data are malformed.
        FileNotFoundError: the files are not there; says how to get them.
    """
    check_data_name(name)
    if name.startswith("npz:"):
        return load_npz(name.removeprefix("npz:"), root)
    singles = load_digits() if name.startswith("digit") else load_fashion_mnist(root, download)
    if not name.endswith("_pairs"):
        return singles
    things = "digits" if name == "digit_pairs" else "garments"
    note = f"Two {things} side by side, at most {_PAIR_LIMIT} images a class; no single serves two parts."
    return PairSource(name, singles, _PAIR_LIMIT, note)
