"""Surgery of stored runs: computed once, kept beside the run, resumable from its last iteration.

`<store>/.operations/<key>` holds `operation.json` (settings, trace, why it ended), `trace.csv` (a row an
iteration), `weights.safetensors` (the state dict after surgery) and `checksums.json`; `<key>.partial` is the
state after the last iteration of an unfinished one. The key follows the run's key, settings and code.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lt_lib._checks import check_choice
from lt_lib.runs import tables
from lt_lib.runs.files import explained, sha256, sync_folder, write_bytes
from lt_lib.runs.files import replace as replace_file
from lt_lib.runs.fingerprint import code_fingerprint
from lt_lib.runs.results import Run
from lt_lib.runs.store import Store
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages
from lt_lib.surgery.deflated import deflated_operate
from lt_lib.surgery.directions import direction_rule
from lt_lib.surgery.loop import Step, operate
from lt_lib.surgery.operation import Operation
from lt_lib.surgery.state import SurgeryState, digest_of
from lt_lib.surgery.trace import Iteration, columns
from lt_lib.training import cpu_threads, repeatable, resolve_device

FORMAT = 1
FILES = ("operation.json", "trace.csv", "weights.safetensors")
_OPTIONS = {"hessian": 256, "hessian_seed": 0, "balanced": False, "phases": 1, "stale": False}
_CODE = ("lt_lib.surgery.loop", "lt_lib.surgery.deflated", "lt_lib.surgery.directions")


@dataclass(frozen=True, eq=False)
class StoredOperation:
    """A finished surgery of a run; the weights stay on the disk until asked for."""

    run: Run
    key: str
    settings: dict[str, Any]  # complete, in JSON types
    trace: tuple[Iteration, ...]
    stopped: str  # why it ended, a sentence
    folder: Path

    def weights(self) -> dict[str, Tensor]:
        """Return the network's state dict after surgery."""
        state: dict[str, Tensor] = safetensors.torch.load_file(self.folder / "weights.safetensors")
        return state

    def load_model(self) -> nn.Module:
        """Return the network after surgery, on the CPU and in eval mode."""
        model = self.run.load_model()
        model.load_state_dict(self.weights())
        return model

    def table(self) -> dict[str, list[Any]]:
        """Return one row an iteration as columns; see `Iteration.summary`."""
        return columns(self.trace)


def operate_run(
    run: Run,
    surgery: SurgeryConfig | Mapping[str, Any],
    store: Store | None = None,
    progress: Callable[[Step], None] | None = None,
    **options: Any,
) -> StoredOperation:
    """Return the surgery of a stored run: from the store, or done now and stored.

    Hessian images are drawn from the run's train part, calibration images are its calibration part. A
    surgery that was killed goes on after its last finished iteration, to the same bits. The run itself stays
    as it is.

    Args:
        run: of a configuration with `calibration`.
        surgery: settings, or a mapping of them; `directions` may be a name of `lt_lib.surgery.directions`.
        store: by default `Store()`.
        progress: called with a `Step` after each iteration that is made now.
        options: `hessian` (number of Hessian images, 256), `hessian_seed` (0), `balanced` (False), `phases`
            (1; more: `deflated_operate` with `spikes` a phase), `stale` (False).

    Raises:
        ValueError: as `operate`; an unknown setting or option; or a run without a calibration part.
        RuntimeError: an eigenpair that is wanted is not certified.
        StoreError: the store cannot be written.
    """
    store = store or Store()
    settings = _completed(surgery, options)
    key = _key(run, settings)
    folder = store.root / ".operations" / key
    found = _read(run, key, folder)
    if found is not None:
        return found
    with store.lock(key):
        found = _read(run, key, folder)
        if found is None:
            shutil.rmtree(folder, ignore_errors=True)  # damaged
            _operate(run, settings, folder, store, progress)
            found = _read(run, key, folder)
    if found is None:
        raise RuntimeError(f"Operation {key} in {store.root} was removed while it was stored. Ask again.")
    return found


def _completed(surgery: SurgeryConfig | Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        check_choice(name, _OPTIONS, "an option of operate_run")
    if isinstance(surgery, SurgeryConfig):
        if surgery.kind != "spikes":
            raise ValueError(
                "Directions of a stored surgery must be given by name, so that they can be found again: pass "
                'a mapping with, for example, `directions="random"`.'
            )
        surgery = surgery.to_dict()
    kind = surgery.get("directions", "spikes")
    complete = SurgeryConfig.from_dict({**surgery, "directions": "spikes"}).to_dict()
    if kind != "spikes":
        direction_rule(kind)  # refuses an unknown name
    return {"surgery": complete | {"directions": kind}, **_OPTIONS, **options}


def _key(run: Run, settings: dict[str, Any]) -> str:
    parts = {
        "run": run.key,
        "settings": settings,
        "code": [code_fingerprint(name) for name in _CODE],
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _config(settings: dict[str, Any]) -> SurgeryConfig:
    plain = {**settings["surgery"], "directions": "spikes"}
    config, kind = SurgeryConfig.from_dict(plain), settings["surgery"]["directions"]
    if kind == "spikes":
        return config
    return replace(config, directions=direction_rule(kind, params=config.params))


def _operate(
    run: Run,
    settings: dict[str, Any],
    folder: Path,
    store: Store,
    progress: Callable[[Step], None] | None,
) -> None:
    partial = folder.with_name(f"{folder.name}.partial")

    def save(step: Step) -> None:
        with explained(store.root):
            replace_file(partial, _pack(step.state()), sync=False)
        if progress is not None:
            progress(step)

    split, training = run.config.split(), run.config.training
    calibration = Calibration.from_split(split)
    hessian = HessianImages.from_split(
        split, settings["hessian"], settings["hessian_seed"], settings["balanced"]
    )
    device = resolve_device(training.device)
    hessian = HessianImages(hessian.images.to(device), hessian.labels.to(device))
    calibration = Calibration(calibration.images.to(device), calibration.labels.to(device), split.classes)
    model = run.load_model().to(device)
    with cpu_threads(training.threads), repeatable(device):
        done = _surgery(model, hessian, calibration, settings, save, _unpack(partial))
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    _write(folder, settings, done, weights, store)
    partial.unlink(missing_ok=True)


def _surgery(
    model: nn.Module,
    hessian: HessianImages,
    calibration: Calibration,
    settings: dict[str, Any],
    save: Callable[[Step], None],
    state: SurgeryState | None,
) -> Operation:
    config = _config(settings)
    if settings["phases"] == 1:
        return operate(model, hessian, calibration, config, save, state)
    return deflated_operate(
        model,
        hessian,
        calibration,
        config,
        settings["phases"],
        config.spikes or calibration.classes - 1,
        stale=settings["stale"],
        progress=save,
        state=state,
    )


def _write(
    folder: Path, settings: dict[str, Any], done: Operation, weights: dict[str, Tensor], store: Store
) -> None:
    rows = [
        {n: float(v) for n, v in step.summary().items() if not isinstance(v, str)}
        | {"class_accuracy": step.after.tolist()}
        for step in done.trace
    ]
    story = {
        "format": FORMAT,
        "settings": settings,
        "stopped": done.stopped,
        "trace": [step.to_dict() for step in done.trace],
    }
    contents = {
        "operation.json": json.dumps(story, allow_nan=False).encode(),
        "trace.csv": tables.text(rows).encode(),
        "weights.safetensors": safetensors.torch.save(weights),
    }
    draft = folder.with_name(f"{folder.name}.draft")
    with explained(store.root):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for name, content in contents.items():
            write_bytes(draft / name, content)
        sums = {name: sha256(draft / name) for name in FILES}
        write_bytes(draft / "checksums.json", json.dumps(sums).encode())
        sync_folder(draft)
        draft.rename(folder)
        sync_folder(folder.parent)


def _read(run: Run, key: str, folder: Path) -> StoredOperation | None:
    """Return a whole operation, or None."""
    try:
        wanted = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
        if any(sha256(folder / name) != wanted[name] for name in FILES):
            return None
        story = json.loads((folder / "operation.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return None
    trace = tuple(Iteration.from_dict(record) for record in story["trace"])
    return StoredOperation(run, key, story["settings"], trace, story["stopped"], folder)


def _pack(state: SurgeryState) -> bytes:
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors.items()}
    note = json.dumps(state.record, allow_nan=False)
    return safetensors.torch.save(tensors, {"record": note, "digest": _digest(note, tensors)})


def _unpack(path: Path) -> SurgeryState | None:
    """Return a partial state, or None if there is none or it is damaged: then surgery starts afresh."""
    try:
        with safe_open(path, framework="pt") as file:
            note, digest = file.metadata()["record"], file.metadata()["digest"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (FileNotFoundError, SafetensorError, KeyError, TypeError):
        return None
    return SurgeryState(tensors, json.loads(note)) if _digest(note, tensors) == digest else None


def _digest(note: str, tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(f"{note} {digest_of(tensors)}".encode()).hexdigest()
