"""`python -m lt_lib.runs list | show | prune | verify`: look into the run store, and tidy it."""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lt_lib.runs.listing import run_keys, run_lines, store_root

if TYPE_CHECKING:  # what imports torch is imported where it is needed
    from lt_lib.runs.store import Store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; `prune --yes` alone changes the store.

    Returns:
        0, or 1 when a run is damaged, unknown or not repeated to the bit, or the store cannot be used.
    """
    options = _parser().parse_args(arguments)
    root = store_root(options.store)
    if root.exists() and not root.is_dir():
        print(f"The run store {root} is a file. Pass the folder that holds the runs.")
        return 1
    return int(options.command(root, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lt_lib.runs", description="Look into the run store.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--store", help="folder of the store (default: LT_RUNS, or runs/ in the project)")
    commands = parser.add_subparsers(required=True, metavar="list | show | prune | verify")
    command = commands.add_parser("list", parents=[common], help="one line a run; reads no weights")
    command.set_defaults(command=_list)
    command = commands.add_parser("show", parents=[common], help="all about the runs of a key")
    command.add_argument("key", nargs="?", help="the key or its first digits")
    command.set_defaults(command=_show)
    command = commands.add_parser("prune", parents=[common], help="what the store does not need")
    command.add_argument("--yes", action="store_true", help="remove it; without, it is only listed")
    command.add_argument("--stale", action="store_true", help="also runs of code or data that have changed")
    command.add_argument("--stems", action="store_true", help="all stems, not only those without use")
    command.set_defaults(command=_prune)
    command = commands.add_parser("verify", parents=[common], help="checksums, and runs trained once more")
    command.add_argument("keys", nargs="*", help="runs to train once more: keys or their first digits")
    command.add_argument("--retrain", type=int, default=0, metavar="N", help="and N runs drawn at random")
    command.add_argument("--seed", type=int, default=0, help="of that draw")
    command.set_defaults(command=_verify)
    return parser


def _list(root: Path, options: argparse.Namespace) -> int:
    for key, line in run_lines(root):
        print(f"{key}: {line}")
    return 0


def _show(root: Path, options: argparse.Namespace) -> int:
    if not options.key:
        print(f"`show` needs a key. `python -m lt_lib.runs list` lists the {len(run_keys(root))} keys.")
        return 1
    keys = _matching(root, [options.key])
    if keys:
        print(*(_page(root, key) for key in keys), sep="\n")
    return 0 if keys else 1


def _prune(root: Path, options: argparse.Namespace) -> int:
    from lt_lib.runs.files import StoreError
    from lt_lib.runs.prune import leftovers, remove
    from lt_lib.runs.store import Store

    store = Store(root)
    try:
        found = leftovers(store, options.stale, options.stems)
        gone = remove(store, found) if options.yes else found
    except StoreError as error:
        print(error.strerror)
        return 1
    for leftover in gone:
        print(f"{leftover.path.relative_to(root)}: {leftover.reason}, {leftover.size / 1e6:.1f} MB")
    total = f"{len(gone)} leftovers, {sum(leftover.size for leftover in gone) / 1e6:.1f} MB, in {root}"
    print(f"{total} removed." if options.yes else f"{total}. Nothing was removed: `--yes` does that.")
    return 0


def _verify(root: Path, options: argparse.Namespace) -> int:
    from lt_lib.runs.store import Store

    store, names = Store(root), run_keys(root)
    damaged = {key: damage for key in names if (damage := _damage(store, key))}
    for key, damage in damaged.items():
        print(f"{key}: {damage}")
    print(f"{len(names) - len(damaged)} of {len(names)} runs in {root} are whole.")
    whole = [key for key in names if key not in damaged]
    chosen = [key for key in _matching(root, options.keys) if key in whole]
    others = [key for key in whole if key not in chosen]
    chosen += random.Random(options.seed).sample(others, min(max(options.retrain, 0), len(others)))
    faithful = _repeated(store, chosen) if chosen else True
    missing = [name for name in options.keys if not any(key.startswith(name) for key in names)]
    return 0 if faithful and not damaged and not missing else 1


def _repeated(store: "Store", keys: list[str]) -> bool:
    import torch

    from lt_lib.runs.machine import machine
    from lt_lib.runs.repeat import repeat

    results = []
    for key in keys:
        results.append(repeat(store, key))
        print(f"{key}: {results[-1].text}", flush=True)
    same = sum(result.identical is True for result in results)
    here = f"{machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    print(f"{same} of {len(keys)} runs trained once more are bit-identical on this machine ({here}).")
    return all(result.identical is not False for result in results)


def _matching(root: Path, beginnings: list[str]) -> list[str]:
    keys = run_keys(root)
    listed = f"`python -m lt_lib.runs list` lists the {len(keys)} keys."
    for name in beginnings:
        if not any(key.startswith(name) for key in keys):
            print(f"No run in {root} begins with `{name}`. {listed}")
    return [key for key in keys if any(key.startswith(name) for name in beginnings)]


def _damage(store: "Store", key: str) -> str | None:
    try:
        return store.damage(key)
    except OSError as error:
        return error.strerror


def _page(root: Path, key: str) -> str:
    from lt_lib.runs.store import Store

    store = Store(root)
    damage = _damage(store, key)
    run = None if damage else store.get(key)
    if run is None:
        return f"{key}: damaged ({damage})"
    return json.dumps([run.config.to_dict(), run.metrics, run.made], indent=1)


if __name__ == "__main__":
    sys.exit(main())
