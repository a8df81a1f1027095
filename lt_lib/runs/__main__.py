"""`python -m lt_lib.runs list | show | prune | verify | sweep`: look into the run store, tidy it, fill it."""

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lt_lib.runs.files import StoreError
from lt_lib.runs.listing import FILES, run_keys, run_lines, store_root
from lt_lib.runs.sweep_command import add_arguments, sweep_command

if TYPE_CHECKING:  # what imports torch is imported where it is needed
    from lt_lib.runs.store import Store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; `prune --yes` and `sweep` alone change the store.

    Returns:
        0; 1 when a run failed, is damaged, unknown or not repeated to the bit, or the store cannot be used;
        2 for arguments that are none; 130 when interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        status = _run(store_root(options.store), options)
        sys.stdout.flush()
    except BrokenPipeError:  # `list | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(_sentence(error))
        return 1
    except KeyboardInterrupt:
        print("Stopped. Finished runs are stored, the others go on from their last checkpoint: ask again.")
        return 130
    return status


def _sentence(error: OSError) -> str:
    if isinstance(error, StoreError) or error.filename is None:
        return error.strerror or str(error)
    return f"{error.filename} cannot be used ({error.strerror})."


def _run(root: Path, options: argparse.Namespace) -> int:
    if root.exists() and not root.is_dir():
        print(f"The run store {root} is a file. Pass the folder that holds the runs.")
        return 1
    if options.store and not root.is_dir() and options.command is not sweep_command:
        print(f"There is no run store at {root}. Check `--store`.")
        return 1
    return int(options.command(root, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lt_lib.runs", description="The run store.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--store", help="folder of the store (default: LT_RUNS, or runs/ in the project)")
    commands = parser.add_subparsers(required=True, metavar="list | show | prune | verify | sweep")
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
    command.add_argument("--retrain", type=_number, default=0, metavar="N", help="and N drawn at random")
    command.add_argument("--seed", type=int, default=0, help="of that draw")
    command.set_defaults(command=_verify)
    command = commands.add_parser("sweep", parents=[common], help="train methods x imbalances x seeds")
    add_arguments(command)
    command.set_defaults(command=sweep_command)
    return parser


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0; found {text!r}")
    return int(text)


def _list(root: Path, options: argparse.Namespace) -> int:
    for key, line in run_lines(root):
        print(f"{key}: {_visible(line)}")
    return 0


def _visible(text: str) -> str:
    """Return the text on one line: names of files may hold line breaks and commands to the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _show(root: Path, options: argparse.Namespace) -> int:
    if not options.key:
        print(f"`show` needs a key. `python -m lt_lib.runs list` lists the {len(run_keys(root))} keys.")
        return 1
    pages = [_page(root, key) for key in _matching(root, [options.key])]
    for _, page in pages:
        print(page)
    return 0 if pages and all(whole for whole, _ in pages) else 1


def _prune(root: Path, options: argparse.Namespace) -> int:
    from lt_lib.runs.prune import leftovers, remove
    from lt_lib.runs.store import Store

    store = Store(root)
    found = leftovers(store, options.stale, options.stems)
    gone = remove(store, found) if options.yes else found
    for leftover in gone:
        name = _visible(str(leftover.path.relative_to(root)))
        print(f"{name}: {leftover.reason}, {leftover.size / 1e6:.1f} MB")
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
    chosen += random.Random(options.seed).sample(others, min(options.retrain, len(others)))
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


def _page(root: Path, key: str) -> tuple[bool, str]:
    from lt_lib.runs.store import Store

    damage = _damage(Store(root), key)
    if damage:
        return False, f"{key}: damaged ({damage})"
    stored, metrics = (json.loads((root / key / name).read_bytes()) for name in (FILES[0], FILES[2]))
    return True, json.dumps([stored["config"], metrics, stored["made"]], indent=1)


if __name__ == "__main__":
    sys.exit(main())
