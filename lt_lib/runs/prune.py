"""What the run store no longer needs: leftovers of killed processes, damaged runs, stems without use."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lt_lib.runs.checkpoints import read_story
from lt_lib.runs.config import RunConfig
from lt_lib.runs.files import explained, replace
from lt_lib.runs.listing import INDEX, KEY, index_content, run_keys
from lt_lib.runs.stems import stem_names
from lt_lib.runs.store import Store

_HEX = KEY.pattern
_DRAFT = re.compile(rf"({_HEX})\.\d+")
_PARTIAL = re.compile(rf"({_HEX})\.safetensors")
_STEM = re.compile(rf"({_HEX})\.\d+\.safetensors")
_DONE = re.compile(rf"({_HEX})\.partial")  # of a surgery, see `lt_lib.runs.operations`
_HALF = re.compile(rf"({_HEX})\.draft|\.({_HEX})\.partial\.\d+\.tmp")
_TORN = re.compile(rf"\.({_HEX})(\.\d+)?\.safetensors\.\d+\.tmp")


@dataclass(frozen=True)
class Leftover:
    """Something that may go."""

    path: Path
    reason: str
    size: int  # bytes
    lock: str | None  # held while it is removed: whoever may use it holds it, too


def leftovers(store: Store, stale: bool = False, stems: bool = False) -> list[Leftover]:
    """Return what the store does not need, and no process is using.

    Whole runs, and checkpoints of runs that can go on, are none of it.

    Args:
        store: the store; nothing in it is moved.
        stale: also runs and checkpoints that nobody can ask for any more, since the code or the data that
            their keys were made from have changed. Reads the data; without them nothing is stale.
        stems: all stems; by default those that no run can start from any more, for the same reasons or
            because PyTorch is another version.
    """
    finished = set(run_keys(store.root))
    found = [*_set_aside(store), *_torn(store), *_operations(store)]
    found += [*_checkpoints(store, finished, stale), *_stems(store, stems)]
    if stale:
        found += [
            _leftover(store.root / key, "nobody can ask for it", key) for key in _stale(store, finished)
        ]
    return [leftover for leftover in found if _is_free(store, leftover)]


def remove(store: Store, found: list[Leftover]) -> list[Leftover]:
    """Remove leftovers, locks that nobody holds, and old lines of the index; return what has gone.

    What another process has begun to use meanwhile stays.

    Raises:
        StoreError: the store cannot be written.
    """
    gone = [leftover for leftover in found if _removed(store, leftover)]
    with explained(store.root):
        for path in list((store.root / ".locks").glob("*.lock")):
            with store.lock_if_free(path.stem) as free:
                if free:
                    path.unlink(missing_ok=True)
        if store.root.is_dir():
            replace(store.root / INDEX, index_content(store.root), sync=False)
    return gone


def _set_aside(store: Store) -> Iterator[Leftover]:
    for path in _entries(store, ".quarantine"):
        yield _leftover(path, "damaged and set aside", None)


def _torn(store: Store) -> Iterator[Leftover]:
    for path in _entries(store, ".draft"):
        if match := _DRAFT.fullmatch(path.name):
            yield _leftover(path, "left by a process that was killed", match[1])
    for folder in (".partial", ".stems"):
        for path in _entries(store, folder):
            if match := _TORN.fullmatch(path.name):
                lock = f"{match[1]}.stem" if folder == ".stems" else match[1]
                yield _leftover(path, "left by a process that was killed", lock)


def _operations(store: Store) -> Iterator[Leftover]:
    for path in _entries(store, ".operations"):
        if match := _HALF.fullmatch(path.name):
            yield _leftover(path, "left by a process that was killed", match[1] or match[2])
        elif (match := _DONE.fullmatch(path.name)) and path.with_suffix("").is_dir():
            yield _leftover(path, "checkpoint of a finished surgery", match[1])


def _checkpoints(store: Store, finished: set[str], stale: bool) -> Iterator[Leftover]:
    for path in _entries(store, ".partial"):
        match = _PARTIAL.fullmatch(path.name)
        if match and match[1] in finished:
            yield _leftover(path, "checkpoint of a finished run", match[1])
        elif match and stale and _current_key(_story_config(path)) not in (None, match[1]):
            yield _leftover(path, "nobody can go on from it", match[1])


def _stems(store: Store, every: bool) -> Iterator[Leftover]:
    for path in _entries(store, ".stems"):
        match = _STEM.fullmatch(path.name)
        if match is None:
            continue
        config = None if every else _story_config(path)
        names = None if config is None else _names(config)
        if every or (names is not None and match[1] not in names):
            reason = "stem" if every else "stem that no run can start from"
            yield _leftover(path, reason, f"{match[1]}.stem")


def _stale(store: Store, finished: set[str]) -> Iterator[str]:
    for key in sorted(finished):
        if store.damage(key) is None:
            entries = json.loads((store.root / key / "config.json").read_text(encoding="utf-8"))["config"]
            if _current_key(entries) not in (None, key):
                yield key


def _current_key(entries: dict[str, Any] | None) -> str | None:
    """Return the key that the configuration has now; "" if it is none any more, None if nobody can tell."""
    if entries is None:
        return None
    try:
        config = RunConfig.from_dict(entries)
    except (ValueError, TypeError):
        return ""
    try:
        return config.key()
    except (ValueError, OSError):
        return None


def _names(entries: dict[str, Any]) -> set[str] | None:
    try:
        config = RunConfig.from_dict(entries)
    except (ValueError, TypeError):
        return set()
    try:
        return stem_names(config)
    except (ValueError, OSError):
        return None


def _story_config(path: Path) -> dict[str, Any] | None:
    story = read_story(path)
    return None if story is None else story["config"]


def _entries(store: Store, folder: str) -> list[Path]:
    place = store.root / folder
    return sorted(place.iterdir()) if place.is_dir() else []


def _leftover(path: Path, reason: str, lock: str | None) -> Leftover:
    alone = path.is_symlink() or path.is_file()  # what a link leads to is not the store's
    files = [path] if alone else [p for p in path.rglob("*") if p.is_file()]
    return Leftover(path, reason, sum(file.lstat().st_size for file in files), lock)


def _is_free(store: Store, leftover: Leftover) -> bool:
    """Say whether nobody holds the lock; without a lock file nobody does, and none is made."""
    if leftover.lock is None or not (store.root / ".locks" / f"{leftover.lock}.lock").exists():
        return True
    with store.lock_if_free(leftover.lock) as free:
        return free


def _removed(store: Store, leftover: Leftover) -> bool:
    with ExitStack() as held:
        if leftover.lock is not None and not held.enter_context(store.lock_if_free(leftover.lock)):
            return False
        with explained(store.root):
            if leftover.path.is_symlink() or leftover.path.is_file():
                leftover.path.unlink()
            elif leftover.path.is_dir():
                _remove_folder(store, leftover.path)
    return True


def _remove_folder(store: Store, folder: Path) -> None:
    """A run goes whole: a kill in between leaves a draft, not half a run."""
    grave = store.root / ".draft" / f"{folder.name[:32]}.0"
    if KEY.fullmatch(folder.name):
        grave.parent.mkdir(exist_ok=True)
        shutil.rmtree(grave, ignore_errors=True)
        folder.rename(grave)
        folder = grave
    shutil.rmtree(folder)
