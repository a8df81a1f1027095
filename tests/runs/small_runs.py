"""A run of a second on few digits, for tests of the store."""

import os
import signal

from lt_lib.runs import RunConfig
from lt_lib.training.optimisers import SGD

NAMES = ("config.json", "history.csv", "metrics.json", "weights.safetensors")


def small_config(seed=0, loss="ce", epochs=4, **training):
    return RunConfig(
        data={"name": "digits", "largest": 12, "imbalance": 3, "calibration": 5, "test": 5},
        net={"depth": 8, "width": 2},
        loss={"name": loss},
        training={"epochs": epochs, "batch": 32, "augment": "shift", "device": "cpu", **training},
        seed=seed,
        measure_every=2,
    )


def bits(run):
    """What must not depend on how a run came about."""
    return {name: (run.folder / name).read_bytes() for name in NAMES[1:]}


def die_at(step):
    """Kill this process, as `kill -9` would, before it takes the optimiser's step of that number."""
    take, taken = SGD.step, []

    def stepping(self, lr):
        taken.append(lr)
        if len(taken) == step:  # in mid-epoch
            os.kill(os.getpid(), signal.SIGKILL)
        take(self, lr)

    SGD.step = stepping
