"""The data by name."""

from pathlib import Path

from lt_lib._checks import check_choice
from lt_lib.data.cifar import SETS as CIFAR_SETS
from lt_lib.data.cifar import cifar_folder, load_cifar
from lt_lib.data.csv_list import load_csv
from lt_lib.data.digits import load_digits
from lt_lib.data.disk import check_damaged
from lt_lib.data.folder import load_folder
from lt_lib.data.idx import fashion_folder, load_fashion_mnist
from lt_lib.data.isic import isic_folder, load_isic
from lt_lib.data.lists import SETS as LISTED_SETS
from lt_lib.data.lists import list_folder, load_listed
from lt_lib.data.names import readable
from lt_lib.data.npz import load_npz
from lt_lib.data.pairs import PairSource
from lt_lib.data.source import Source

# sources of image files on disk, by what comes before the colon, with the size of their images
_FILE_SIZES = {"csv": 64, "folder": 64, "imagenet_lt": 224, "inaturalist2018": 224, "isic2019": 224}
_NAMED_PATHS = {"npz": "FILE", "folder": "DIR", "csv": "FILE"}
DATA_NAMES = (
    *("digits", "digit_pairs", "fashion_mnist", "fashion_pairs", "cifar10", "cifar100"),
    *("imagenet_lt", "inaturalist2018", "isic2019", "npz:FILE", "folder:DIR", "csv:FILE"),
)
# as many images a class as CIFAR-100 has; all pairs of garments would fill a gigabyte
_PAIR_LIMIT = 500


def check_data_name(name: str) -> None:
    """Refuse a data name that `load` does not know, without loading anything.

    Raises:
        ValueError: the name is unknown; the known ones and the closest are listed. Or its path holds bytes
            that are no UTF-8, so that no configuration could be stored with it.
    """
    try:
        str(name).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`name` must be text in UTF-8, to be stored with what is made from it; found "
            f"`{readable(name)}`. Rename the folder or file."
        ) from error
    kind, _, path = str(name).partition(":")
    placeholder = _NAMED_PATHS.get(kind)
    if placeholder and path not in ("", placeholder):
        return
    check_choice("" if path and path == placeholder else name, DATA_NAMES, "name")


def check_data_files(name: str, root: str | Path | None = None) -> None:
    """Refuse a public data set whose files are not there, without reading them; a reader's own pass.

    Raises:
        ValueError: the name is unknown.
        FileNotFoundError: the files are not there; says how to get them.
    """
    check_data_name(name)
    if name in CIFAR_SETS:
        cifar_folder(name, root)
    elif name in LISTED_SETS:
        list_folder(name, root)
    elif name == "isic2019":
        isic_folder(root)
    elif name.startswith("fashion"):
        fashion_folder(root)


def load(
    name: str,
    root: str | Path | None = None,
    download: bool = False,
    size: int | None = None,
    memory_limit: int | None = None,
    damaged: str = "refuse",
) -> Source | PairSource:
    """Load a source by name.

    | name | images | classes |
    | --- | --- | --- |
    | `digits` | scikit-learn's digits, 8 x 8, about 180 a class, no test part | 10 |
    | `digit_pairs` | two digits side by side, 8 x 16, each part composed of its own digits | 100 |
    | `fashion_mnist` | Fashion-MNIST, 28 x 28, 6,000 + 1,000 a class | 10 |
    | `fashion_pairs` | two garments side by side, 28 x 56, at most 500 a class in a part | 100 |
    | `cifar10` | CIFAR-10, 32 x 32 RGB, 5,000 + 1,000 a class | 10 |
    | `cifar100` | CIFAR-100, 32 x 32 RGB, 500 + 100 a class | 100 |
    | `imagenet_lt` | ImageNet-LT by its lists, files, 5 to 1,280 + 50 a class | 1000 |
    | `inaturalist2018` | iNaturalist 2018 by its lists, files, 2 to 1,000 + 3 a class | 8142 |
    | `isic2019` | ISIC 2019's training images, files, 239 to 12,875 a class, grouped by lesion | 8 |
    | `npz:FILE` | your own arrays, see `load_npz` | C |
    | `folder:DIR` | your own image files, one sub-folder a class, see `load_folder` | C |
    | `csv:FILE` | your own image files by a list of paths and labels, see `load_csv` | C |

    Args:
        name: one of the names above.
        root: folder of the files (see `load_fashion_mnist`, `load_cifar`, `load_listed`, `load_isic`), by
            default the one that the environment variable LT_DATA names; or of a relative path of
            your own, which is otherwise taken from the current folder, then from the project's.
        download: let Fashion-MNIST or CIFAR be fetched into `root`; nothing is downloaded otherwise.
        size: height and width of images that come from files; by default 224, for your
            own 64.
        memory_limit: most bytes that such images may take decoded; above it they stay on disk and are
            decoded when they are needed. By default 1 GiB.
        damaged: "leave out" keeps going without images that cannot be decoded or hold NaN and names them in
            the source's note; by default the first one is refused.

    Raises:
        ValueError: the name is unknown, or the data are malformed.
        FileNotFoundError: the files are not there; says how to get them.
    """
    check_data_name(name)
    check_damaged(damaged)
    kind, _, path = name.partition(":")
    if kind in _FILE_SIZES:
        how = (root, _FILE_SIZES[kind] if size is None else size, memory_limit, damaged)
        if kind in ("folder", "csv"):
            return (load_folder if kind == "folder" else load_csv)(path, *how)
        return load_isic(*how) if kind == "isic2019" else load_listed(kind, *how)
    for value, option in ((size, "size"), (memory_limit, "memory_limit")):
        if value is not None:
            raise ValueError(
                f"`{option}` is for image files ({', '.join(sorted(_FILE_SIZES))}); found {value!r} for "
                f"`{name}`, whose images have a size of their own and lie in memory. Leave it out."
            )
    if kind == "npz":
        return load_npz(path, root, damaged)
    if kind in CIFAR_SETS:
        return load_cifar(kind, root, download)
    singles = load_digits() if name.startswith("digit") else load_fashion_mnist(root, download)
    if not name.endswith("_pairs"):
        return singles
    things = "digits" if name == "digit_pairs" else "garments"
    note = f"Two {things} side by side, at most {_PAIR_LIMIT} images a class; no single serves two parts."
    return PairSource(name, singles, _PAIR_LIMIT, note)
