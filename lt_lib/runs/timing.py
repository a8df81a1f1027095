"""How long a step of each method takes on the data and the machine at hand, while all processes work.

One process alone is faster than the same process beside others, so companions train meanwhile: started as
`python -m lt_lib.runs.timing`, they read a configuration from stdin, and end when stdin does.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from lt_lib.data import Part, Split, normalisation
from lt_lib.runs.budget import Cost, Timing, known_methods
from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import loss_of, make_net
from lt_lib.runs.many import _spawn
from lt_lib.runs.methods import METHODS, REFERENCE, method_config
from lt_lib.training import Trainer, cpu_threads, evaluate, repeatable, resolve_device
from lt_lib.training.two_stage import second_stage

_STEPS = 6  # of an epoch that is timed
_STAGE = 2.0  # a second stage over a forward pass of the same images in large batches; measured: 1.9 to 2.1

Clock = Callable[[], float]


def measure_costs(
    base: RunConfig,
    methods: Sequence[str],
    workers: int = 2,
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Measure what a run of each method costs under `base`; the plan of a comparison rests on it.

    Of each method some steps of its last epoch are timed, after as many that are not, on a random part of
    the training images; what it shares with cross-entropy is not counted again. The time of a second stage
    is computed, not measured: its epochs times a forward pass, times 2. Nothing is stored.

    Args:
        base: data, network and training settings.
        methods: names of `lt_lib.runs.methods.METHODS`; "CE" is added.
        workers: processes that will train at once, as in `run_many`.
        seconds: least time on each method's steps.
        clock: in seconds; only differences count.

    Raises:
        ValueError: a name is unknown, or bad settings or data.
        RuntimeError: a companion process ended; its message is on stderr.
    """
    began = clock()
    _prepare(base)
    split, costs = base.split(), {}
    with _companions(base, workers - 1, clock) as start:
        for name in known_methods(methods):
            costs[name] = _cost(method_config(base, name, seed=0), split, name, seconds, clock)
    steps = _trainer(base, split, split.train).steps_per_epoch
    return Timing(costs, steps, start, clock() - began)


def _cost(config: RunConfig, split: Split, name: str, seconds: float, clock: Clock) -> Cost:
    part = _sample(split.train, _STEPS * config.training.batch)
    trainer = _trainer(config, split, part)
    whole = _trainer(config, split, split.train).steps_per_epoch
    with cpu_threads(config.training.threads), repeatable(trainer.device):
        epoch = _repeated(lambda: trainer.run_epoch(config.training.epochs - 1), seconds, clock)
        look = _repeated(lambda: _look(trainer, part), seconds / 4, clock) / len(part)
    images = sum(len(one) for one in split.parts().values())
    method, after = METHODS[name], 0.0
    if config.after is not None and "training" in config.after:
        stage = second_stage(config.training, **config.after["training"])
        after = _STAGE * stage.epochs * len(split.train) * look
    return Cost(epoch / trainer.steps_per_epoch * whole, images * look, after, method.shared)


def _trainer(config: RunConfig, split: Split, part: Part) -> Trainer:
    model, loss = make_net(config, split), loss_of(config, split)
    return Trainer(model, loss, part, config.training, config.seed, normalisation(split.train))


def _look(trainer: Trainer, part: Part) -> None:
    evaluate(trainer.model, part, trainer.normalise, memory_format=trainer.config.memory_format)


def _sample(part: Part, images: int) -> Part:
    generator = torch.Generator().manual_seed(0)
    return part.take(torch.randperm(len(part), generator=generator)[:images].sort().values)


def _repeated(work: Callable[[], None], seconds: float, clock: Clock) -> float:
    """Return the mean time of `work` over enough repetitions, the first one not counted."""
    work()
    began, times = clock(), 0
    while times == 0 or (clock() - began < seconds and times < 1000):
        work()
        times += 1
    return (clock() - began) / times


@contextmanager
def _companions(base: RunConfig, number: int, clock: Clock) -> Iterator[float]:
    """Keep `number` processes training; yield how long they took to load program and data, 0 for none."""
    began = clock()
    processes = [_spawn(base.training.threads or 1, __name__) for _ in range(number)]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(base.to_dict()) + "\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("A process that trains beside the measurement ended; see its message.")
        yield clock() - began if processes else 0.0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _accompany() -> None:
    """Train without end, until stdin is closed or this process is killed."""
    config = RunConfig.from_dict(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    _prepare(config)
    print("ready", flush=True)
    split = config.split()
    trainer = _trainer(config, split, _sample(split.train, _STEPS * config.training.batch))
    with cpu_threads(config.training.threads), repeatable(resolve_device(config.training.device)):
        while True:
            trainer.run_epoch(config.training.epochs - 1)


def _prepare(base: RunConfig) -> None:
    """Do what a process does once before its first run: load the data, and read the code for the keys."""
    for name in (REFERENCE, "CE + logit adjustment"):  # runs with and without something after the training
        method_config(base, name, seed=0).key()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _accompany()
