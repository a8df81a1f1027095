"""Build the book: run the notebooks whose inputs changed, then render what changed.

Usage: python book/build.py [--profile digits] [--force] [--run-only] [--scheduler tcp://HOST:PORT]
"""

import argparse
import errno
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from pipeline.layout import ROOT, BuildError, Layout, check_profile, kernel_environment
from pipeline.progress import clock

# the disk is full, or nobody may write there; Windows knows no quota
REFUSED = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EROFS, errno.EACCES)


def prepare(layout: Layout) -> None:
    """Put this process, and so every kernel, into the project's fixed surroundings.

    Only the number of threads is read here. The library checks the whole profile before a notebook runs, but
    importing it takes seconds, which an unchanged book need not spend.

    Raises:
        BuildError: the profile is unknown or holds a mistake.
    """
    os.environ["LT_HOME"] = str(layout.root)
    path = layout.notebooks / "profiles" / f"{layout.profile}.yaml"
    try:
        threads = int(yaml.safe_load(path.read_text(encoding="utf-8"))["threads"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        check_profile(layout)
        threads = 1
    os.environ.update(kernel_environment(layout, threads))


def use_scheduler(address: str) -> None:
    """Have the notebooks train on the Dask cluster at `address`: `lt_lib.runs.run_many` reads LT_SCHEDULER.

    Raises:
        BuildError: this is no address, or no scheduler answers.
    """
    from lt_lib.runs.cluster import ClusterError, check_scheduler

    try:
        check_scheduler(address)
    except (ValueError, ClusterError) as error:
        raise BuildError(str(error)) from None
    os.environ["LT_SCHEDULER"] = address


def build(layout: Layout, force: bool = False, run_only: bool = False, scheduler: str | None = None) -> None:
    """Bring the book of one profile up to date.

    Raises:
        BuildError: a notebook failed or the book does not render without warnings.
    """
    prepare(layout)
    if scheduler:
        use_scheduler(scheduler)
    # after `prepare`: numerical libraries read their thread counts once, when they load
    from pipeline.execute import run_notebooks
    from pipeline.render import render
    from pipeline.stage import stage
    from pipeline.workers import sole_build

    with sole_build(layout):
        run_notebooks(layout, force)
        if not run_only:
            render(layout, stage(layout), force)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="digits", help="a file in notebooks/profiles (default: digits)")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of another book")
    parser.add_argument("--force", action="store_true", help="run and render even what is unchanged")
    parser.add_argument("--run-only", action="store_true", help="run the notebooks, render nothing")
    parser.add_argument("--scheduler", help="train on the Dask cluster at this address, tcp://HOST:PORT")
    options = parser.parse_args(arguments)
    layout = Layout(options.profile, options.root.resolve())
    started = time.monotonic()
    try:
        build(layout, options.force, options.run_only, options.scheduler)
    except BuildError as error:
        print(f"\n{error}\n\nThe build failed; the last good book, if any, is untouched.", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        place = error.filename or layout.build
        print(
            f"\n{place} cannot be written ({error.strerror}). Free some space or make it writable, and start "
            "again: finished notebooks are kept.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The next `make book` goes on from here.", file=sys.stderr)
        return 130
    if not options.run_only:
        print(f"Done in {clock(time.monotonic() - started)}. Open {layout.html / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
