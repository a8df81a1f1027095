"""Runs of a second whose losses are deferred, for tests of stems."""

import tempfile
from dataclasses import replace

from safetensors import safe_open
from small_runs import bits, small_config

from lt_lib.runs import Store, run
from lt_lib.runs.experiment import execute

EPOCHS, START = 5, 3
CE = {"name": "ce"}
RELEASED = {"name": "inverse", "preset": "as_released", "start_epoch": START}
DEFERRED = {
    "class mean": {"name": "class_mean", "defer_epoch": START},
    "class balanced": {"name": "class_balanced", "defer_epoch": 0.6},
    "released": RELEASED,
    "released, stopped": {**RELEASED, "through_weights": False},
    "released, no clamp": {**RELEASED, "clamp": None},
    "beta of each step": {**RELEASED, "macro": "step", "macro_norm": "samples", "alpha": 0.5},
}
_known = {}


def configured(loss, seed=0, **training):
    return replace(small_config(seed, epochs=EPOCHS, **training), loss=loss)


def without(config):
    """The bits of a run that has never met a stem: its training and nothing else."""
    key = config.key()
    if key not in _known:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder)
            store.put(key, config, execute(config), 0.0)
            _known[key] = bits(store.get(key))
    return _known[key]


def trained(config, store, **options):
    """Run; return the run and the epochs that were trained for it."""
    epochs = []
    found = run(config, store, progress=lambda done, _: epochs.append(done), **options)
    return found, epochs


def stem_files(store):
    return sorted((store.root / ".stems").glob("*"))


def content(path):
    """What a stem holds: its file's bytes but for the order of the two texts in the header."""
    with safe_open(path, "pt") as file:
        return file.metadata(), file.get_tensor("state").numpy().tobytes()
