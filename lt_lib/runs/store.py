"""The run store: one folder a run, checked by checksums, written by atomic rename."""

import errno
import json
import logging
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from lt_lib.runs import checkpoints, tables
from lt_lib.runs.config import FORMAT, RunConfig
from lt_lib.runs.experiment import Checkpoint, Outcome
from lt_lib.runs.files import StoreError, explained, replace, sha256, sync_folder, write_bytes
from lt_lib.runs.listing import FILES, KEY, add_to_index, is_newer, run_keys, store_root, stored_format
from lt_lib.runs.lock import if_free, locked
from lt_lib.runs.machine import machine
from lt_lib.runs.results import Run
from lt_lib.training import resolve_device

_log = logging.getLogger(__name__)


class Store:
    """Runs on disk, one folder a key (32 hex digits): `FILES` and `checksums.json`. Others are left alone.

    Beside them `.partial` (checkpoints of unfinished runs), `.stems` (checkpoints that several runs start
    from, see `lt_lib.runs.stems`; without them runs only take longer), `.locks`, `.quarantine` (what does
    not fit its checksums, set aside for inspection when it is computed again), `.draft` (folders being
    written) and `.index` (see `lt_lib.runs.listing`). Reading moves nothing and needs no write permission.
    A run of a newer format is refused, never read, judged or moved.

    Args:
        root: the folder; by default the environment variable LT_RUNS, else `runs` in the project. It is
            made on the first write.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = store_root(root)

    def keys(self) -> list[str]:
        """Return the keys of all stored runs, sorted."""
        return run_keys(self.root)

    def damage(self, key: str) -> str | None:
        """Return what is wrong with a stored run's files, or None; reads every byte and moves nothing.

        Raises:
            ValueError: `key` is no key.
            StoreError: it is of a newer format, or may not be read.
        """
        folder = self._folder(key)
        number = stored_format(folder)
        if number is not None and number > FORMAT:
            raise StoreError(
                errno.EINVAL,
                f"Run {key} in {self.root} was {is_newer(number)}. Update lt_lib, or set LT_RUNS to another "
                "folder.",
            )
        with explained(self.root):
            return _damage(folder)

    def get(self, key: str) -> Run | None:
        """Return a stored run, or None if there is none or it is damaged. Moves nothing.

        Raises:
            ValueError: `key` is no key.
            StoreError: it is of a newer format, or a file cannot be read.
        """
        folder = self._folder(key)
        if not folder.is_dir() or self.damage(key) is not None:
            return None
        with explained(self.root):
            stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            history = tables.read(folder / "history.csv")
        return Run(RunConfig.from_dict(stored["config"]), key, history, metrics, folder, stored["made"])

    def make_room(self, key: str) -> None:
        """Set a damaged run aside, so that it can be computed again. Hold the key's lock.

        Raises:
            ValueError: `key` is no key.
            StoreError: it cannot be set aside, or is of a newer format.
        """
        folder = self._folder(key)
        damage = self.damage(key) if os.path.lexists(folder) else None  # also a file, or a link to nowhere
        if damage is not None:
            self._set_aside(folder, damage)

    def put(self, key: str, config: RunConfig, outcome: Outcome, seconds: float) -> None:
        """Write a finished run: it appears whole or not at all. Hold the key's lock.

        Raises:
            StoreError: the store cannot be written; nothing of the run is left behind then.
        """
        draft = self.root / ".draft" / f"{key}.{os.getpid()}"
        with explained(self.root):
            try:
                self._write(draft, config, outcome, seconds)
                draft.rename(self.root / key)
                sync_folder(self.root)
                add_to_index(self.root, key, config.to_dict())
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            self._partial(key).unlink(missing_ok=True)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the right to train `key`; wait for another process that has it.

        Raises:
            StoreError: the store cannot be written.
        """
        waiting = locked(self._lock_file(key))
        with explained(self.root):
            waiting.__enter__()
        try:
            yield
        finally:
            waiting.__exit__(None, None, None)

    @contextmanager
    def lock_if_free(self, name: str) -> Iterator[bool]:
        """Hold the lock of a run, or of stems (`<name>.stem`), if nobody does; say whether that is so.

        Raises:
            StoreError: the store cannot be written.
        """
        waiting = if_free(self._lock_file(name))
        with explained(self.root):
            free = waiting.__enter__()
        try:
            yield free
        finally:
            waiting.__exit__(None, None, None)

    def save_checkpoint(self, key: str, config: RunConfig, checkpoint: Checkpoint) -> None:
        """Replace the run's partial checkpoint, whole or not at all. Hold the key's lock.

        Not flushed to the disk: a process that dies loses nothing, a machine that does may lose the
        file, whose digest then shows it and the run starts afresh.

        Raises:
            StoreError: the store cannot be written; the earlier checkpoint is still there then.
        """
        with explained(self.root):
            replace(self._partial(key), checkpoints.pack(config, checkpoint), sync=False)

    def load_checkpoint(self, key: str, config: RunConfig) -> Checkpoint | None:
        """Return the run's partial checkpoint, or None; a damaged one is set aside.

        Raises:
            ValueError: it belongs to another configuration.
            StoreError: a damaged one cannot be set aside.
        """
        path = self._partial(key)
        if not path.is_file():
            return None
        with explained(self.root):
            content = path.read_bytes()
        try:
            return checkpoints.unpack(content, config)
        except checkpoints.Damaged as error:
            self._set_aside(path, str(error))
            return None

    def save_stem(self, name: str, config: RunConfig, stem: Checkpoint) -> None:
        """Store a stem, whole or not at all, and like a partial checkpoint not flushed to the disk.

        Raises:
            StoreError: the store cannot be written.
        """
        with explained(self.root):
            replace(self._stem(name, stem.state.epoch), checkpoints.pack(config, stem), sync=False)

    def load_stem(self, name: str, config: RunConfig, epoch: int) -> Checkpoint | None:
        """Return the stem of `epoch` finished epochs, or None; a damaged or misplaced one is set aside.

        Raises:
            StoreError: it cannot be set aside.
        """
        path = self._stem(name, epoch)
        if not path.is_file():
            return None
        with explained(self.root):
            content = path.read_bytes()
        try:
            stem = checkpoints.unpack(content, config)
            if stem.state.epoch == epoch:
                return stem
            damage = f"it holds epoch {stem.state.epoch}"
        except checkpoints.Damaged as error:
            damage = str(error)
        except ValueError:
            damage = "it belongs to another configuration"
        self._set_aside(path, damage)
        return None

    def _folder(self, key: str) -> Path:
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise ValueError(
                f"`key` must be 32 hex digits, such as `RunConfig.key()` gives; found {key!r}. "
                "`Store.keys()` lists those that are stored."
            )
        return self.root / key

    def _lock_file(self, name: str) -> Path:
        return self.root / ".locks" / f"{name}.lock"

    def _stem(self, name: str, epoch: int) -> Path:
        return self.root / ".stems" / f"{name}.{epoch}.safetensors"

    def _partial(self, key: str) -> Path:
        return self.root / ".partial" / f"{key}.safetensors"

    def _set_aside(self, path: Path, reason: str) -> None:
        with explained(self.root):
            refuge = self.root / ".quarantine"
            refuge.mkdir(parents=True, exist_ok=True)
            number = sum(1 for _ in refuge.glob(f"{path.name}.*"))
            try:
                path.rename(refuge / f"{path.name}.{number}")
            except FileNotFoundError:  # another process has just set it aside
                return
        _log.warning(
            "%s is damaged (%s): moved to %s, and it will be computed again.", path.name, reason, refuge
        )

    def _write(self, draft: Path, config: RunConfig, outcome: Outcome, seconds: float) -> None:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        made = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": _device_name(config.training.device),
            "machine": machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "seconds": round(seconds, 2),
        }
        contents = {
            "config.json": _json({"config": config.to_dict(), "format": FORMAT, "made": made}),
            "history.csv": tables.text(outcome.rows).encode(),
            "metrics.json": _json(outcome.metrics),
            "weights.safetensors": safetensors.torch.save(outcome.weights),
        }
        for name, content in contents.items():
            write_bytes(draft / name, content)
        write_bytes(draft / "checksums.json", _json({name: sha256(draft / name) for name in FILES}))
        sync_folder(draft)


def _damage(folder: Path) -> str | None:
    name = "checksums.json"
    try:
        wanted = json.loads((folder / name).read_text(encoding="utf-8"))
        if not isinstance(wanted, dict) or set(wanted) != set(FILES):
            return "checksums.json does not list the run's files"
        for name in FILES:
            if not (folder / name).is_file():
                return f"{name} is missing"
            if sha256(folder / name) != wanted[name]:
                return f"{name} is not as it was written"
    except PermissionError:  # says nothing of the content
        raise
    except (OSError, ValueError) as error:
        return f"{name} cannot be read ({type(error).__name__})"
    return None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _device_name(setting: str) -> str:
    device = resolve_device(setting)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
