"""`python -m lt_lib.runs list | show KEY | verify`: look into the run store."""

import argparse
import json
import sys

from lt_lib.runs.store import Store


def main(arguments: list[str] | None = None) -> int:
    """Run the command, which changes nothing in the store.

    Returns:
        0, or 1 when a run is damaged or unknown, or the store is no folder.
    """
    parser = argparse.ArgumentParser(prog="python -m lt_lib.runs", description="Look into the run store.")
    parser.add_argument("command", choices=("list", "show", "verify"))
    parser.add_argument("key", nargs="?", help="for show: the key or its first digits")
    parser.add_argument("--store", help="folder of the store (default: LT_RUNS, or runs/ in the project)")
    options = parser.parse_args(arguments)
    store = Store(options.store)
    if store.root.exists() and not store.root.is_dir():
        print(f"The run store {store.root} is a file. Pass the folder that holds the runs.")
        return 1
    names = store.keys()
    if options.command == "verify":
        damaged = {key: damage for key in names if (damage := store.damage(key))}
        for key, damage in damaged.items():
            print(f"{key}: {damage}")
        print(f"{len(names) - len(damaged)} of {len(names)} runs in {store.root} are whole.")
        return 1 if damaged else 0
    if options.command == "list":
        for key in names:
            print(_line(store, key))
        return 0
    keys = [key for key in names if options.key and key.startswith(options.key)]
    for key in keys:
        print(_page(store, key))
    if not keys:
        asked = f"No run in {store.root} begins with `{options.key}`" if options.key else "`show` needs a key"
        print(f"{asked}. `python -m lt_lib.runs list` lists the {len(names)} keys.")
    return 0 if keys else 1


def _line(store: Store, key: str) -> str:
    run = store.get(key)
    return f"{key}: damaged" if run is None else f"{key}: {run.config.describe()}"


def _page(store: Store, key: str) -> str:
    run = store.get(key)
    return (
        f"{key}: damaged"
        if run is None
        else json.dumps([run.config.to_dict(), run.metrics, run.made], indent=1)
    )


if __name__ == "__main__":
    sys.exit(main())
