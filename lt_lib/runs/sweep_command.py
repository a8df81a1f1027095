"""`python -m lt_lib.runs sweep`: its arguments, which need no PyTorch, and the command."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what imports torch is imported where it is needed
    from lt_lib.runs.config import RunConfig
    from lt_lib.runs.results import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; those of the grid stand for entries of the file, and replace them."""
    parser.add_argument("file", nargs="?", type=Path, help="YAML, such as examples/cluster/sweep.yaml")
    parser.add_argument("--profile", help="a file in notebooks/profiles (default: digits)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="a name that is none lists them all")
    parser.add_argument("--imbalances", nargs="+", type=float, help="default: that of the profile")
    parser.add_argument("--seeds", type=int, help="training seeds 0, 1, ... (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="processes on this machine (default: 2)")
    parser.add_argument("--scheduler", help="address of a Dask cluster to use instead, tcp://HOST:PORT")


def sweep_command(root: Path, options: argparse.Namespace) -> int:
    """Train the runs of a sweep into the store at `root`, with a progress bar.

    Returns:
        0, or 1 when runs failed or nothing could be started; what is wrong is printed.
    """
    from lt_lib.runs.cluster import ClusterError
    from lt_lib.runs.grid import grid, read_grid
    from lt_lib.runs.many import RunsFailed

    given = {name: getattr(options, name) for name in ("profile", "methods", "imbalances", "seeds")}
    try:
        entries = read_grid(options.file) if options.file else {}
        configs = grid({**entries, **{name: value for name, value in given.items() if value is not None}})
        runs = _with_bar(configs, root, options)
    except (ValueError, RunsFailed, ClusterError) as error:
        print(error)
        return 1
    for run in runs:
        balanced = run.metrics["test"]["balanced"]
        print(f"{run.key}: {run.config.describe()}: balanced accuracy {balanced:.3f}")
    return 0


def _with_bar(configs: "list[RunConfig]", root: Path, options: argparse.Namespace) -> "list[Run]":
    from tqdm import tqdm

    from lt_lib.runs.store import Store
    from lt_lib.runs.sweep import sweep

    with tqdm(total=len(configs), unit="run", smoothing=0) as bar:

        def report(done: int, total: int, config: Any) -> None:
            bar.total = total
            bar.update(done - bar.n)

        runs = sweep(configs, options.scheduler, Store(root), options.workers, report)
        bar.update(bar.total - bar.n)  # what the store had already
    return runs
