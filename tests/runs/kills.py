"""Work that is killed at random moments and asked for again; `python kills.py '{"train": 9}' SEED FOLDER`.

Prints what was lost or came out wrong, as JSON. Each piece of work is a forked process, since importing
torch anew takes seconds.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from after_runs import KINDS, with_after
from small_runs import NAMES, small_config

from lt_lib.curvature import MatrixOperator, lanczos
from lt_lib.runs import Store, experiment, run
from lt_lib.runs.checkpoints import read_story
from lt_lib.runs.experiment import Checkpoint, Outcome
from lt_lib.runs.files import replace
from lt_lib.runs.listing import run_keys
from lt_lib.runs.operations import operate_run
from lt_lib.training import TrainState

torch.set_num_threads(1)
experiment.SAVE_SECONDS = 0.0  # a checkpoint after each step


def train(root: Path) -> None:
    run(small_config(loss="inverse"), Store(root))


def edit(root: Path) -> None:
    run(with_after(KINDS["retrained"], epochs=2), Store(root))


def write(root: Path) -> None:
    """Store four runs of two megabytes, each after three checkpoints as large."""
    store, config = Store(root), small_config()
    for number in range(4):
        key = f"{number:032x}"
        with store.lock(key):
            if store.get(key) is not None:
                continue
            weights = {"w": torch.arange(500_000, dtype=torch.float32) + number}
            found = store.load_checkpoint(key, config)
            for epoch in range(found.state.epoch if found else 0, 3):
                state = TrainState(epoch + 1, weights, {"steps": []})
                store.save_checkpoint(key, config, Checkpoint(state, []))
            rows = [{"epoch": 1, "value": number / 3}]
            store.put(key, config, Outcome(rows, {"number": number}, weights), 0.0)


def eigenpairs(root: Path) -> None:
    """Find eigenpairs with restarts; the state is saved after each product."""
    values = torch.tensor([*np.geomspace(9, 3, 9), *np.linspace(-0.5, 1.5, 200)])
    basis = torch.linalg.qr(torch.randn(209, 209, generator=torch.Generator().manual_seed(0)))[0]
    operator = MatrixOperator((basis * values.float()) @ basis.T)
    file = root / "state.pt"
    state = torch.load(file, weights_only=True) if file.exists() else None

    def save(progress) -> None:
        draft = root / f"draft.{os.getpid()}"
        torch.save(progress.state(copy=False), draft)
        os.replace(draft, file)

    found = lanczos(operator, 9, callback=save, resume=state, max_memory=18 * 209 * 4)
    replace(root / "vectors.bin", found.vectors.numpy().tobytes())


def surgery(root: Path) -> None:
    settings = {"iterations": 3, "spikes": 4, "radius": 0.02, "radius_unit": "nats", "minimum": 0.005}
    operate_run(run(small_config(), Store(root)), settings, Store(root), hessian=40)


WORK: dict[str, Callable[[Path], None]] = {
    "train": train,
    "edit": edit,
    "write": write,
    "eigenpairs": eigenpairs,
    "surgery": surgery,
}


def start(kind: str, root: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            WORK[kind](root)
            os._exit(0)
        finally:
            os._exit(1)  # after the traceback of what should not happen
    return pid


def results(root: Path) -> dict[str, str]:
    """Digests of all that the work is for."""
    files = [root / key / name for key in run_keys(root) for name in NAMES[1:]]
    files += [*root.glob("vectors.bin"), *root.glob(".operations/*/weights.safetensors")]
    found = {str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    for path in root.glob(".operations/*/operation.json"):
        trace = json.loads(path.read_text())["trace"]
        found[str(path.relative_to(root))] = json.dumps([step | {"seconds": 0} for step in trace])
    return found


def reached(root: Path) -> tuple[int, int, int]:
    """How far the work has come: finished runs, then epochs and steps of the furthest checkpoint."""
    stories = [read_story(path) for path in (root / ".partial").glob("[0-9a-f]*.safetensors")]
    at = [(story["epoch"], story["extra"].get("batch", 0)) for story in stories]
    return (len(run_keys(root)), *max(at, default=(0, 0)))


def faults(root: Path, before: tuple[int, int, int]) -> list[str]:
    """What must not be after a kill."""
    store = Store(root)
    found = [f"{key}: {damage}" for key in run_keys(root) if (damage := store.damage(key))]
    found += [f"set aside: {path.name}" for path in (root / ".quarantine").glob("*")]
    return found + ([f"fell back from {before} to {reached(root)}"] if reached(root) < before else [])


def ended(pid: int, moment: float) -> int:
    """Wait for a process, kill it if it is still there after `moment` seconds; return its status."""
    until = time.monotonic() + moment
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(min(0.005, moment))
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def torment(kind: str, kills: int, rng: random.Random, folder: Path) -> dict[str, object]:
    """Kill the work `kills` times; begin it anew whenever it has ended."""
    (folder / "whole").mkdir(parents=True)
    began = time.monotonic()
    assert os.waitpid(start(kind, folder / "whole"), 0)[1] == 0
    seconds, wanted = time.monotonic() - began, results(folder / "whole")
    wrong: list[str] = []
    done = rounds = 0
    while done < kills and not wrong:
        root = folder / str(rounds)
        root.mkdir()
        rounds += 1
        status = -1
        while status and not wrong:
            before, started = reached(root), time.monotonic()
            moment = rng.uniform(0, 1.2 * seconds) if done < kills else float("inf")
            status = ended(start(kind, root), moment)
            done += status == signal.SIGKILL
            if status == 0 and before == (0, 0, 0):  # undisturbed: the machine may be less busy than before
                seconds = min(seconds, time.monotonic() - started)
            wrong += faults(root, before)
            wrong += [f"ended with {status}"] if status not in (0, signal.SIGKILL) else []
        wrong += [] if results(root) == wanted else [f"other results in {root}"]
    return {"kills": done, "rounds": rounds, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    wanted_kills, seed, where = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    generator = random.Random(seed)
    print(json.dumps({k: torment(k, n, generator, where / k) for k, n in wanted_kills.items()}))
