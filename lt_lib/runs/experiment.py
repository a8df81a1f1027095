"""One run in memory: data, network, loss, training, measurement. Nothing here touches the store."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.collapse import class_losses, loss_imbalance, loss_ratio
from lt_lib.data import Split, normalisation
from lt_lib.losses import make_loss
from lt_lib.losses._base import ClassLoss
from lt_lib.metrics import accuracy
from lt_lib.nets import build_net
from lt_lib.runs.config import RunConfig
from lt_lib.training import (
    Callback,
    Predictions,
    Recorder,
    Trainer,
    TrainState,
    collapse_of,
    cpu_threads,
    epoch_weights,
    evaluate,
    train,
)

SAVE_SECONDS = 300.0  # between two checkpoints within an epoch; when they are made changes no bit


@dataclass(frozen=True)
class Checkpoint:
    """A run after a finished epoch, or within a long one: what it takes to go on."""

    state: TrainState
    rows: list[dict[str, Any]]  # of the Recorder so far


@dataclass(frozen=True)
class Outcome:
    """A finished run, in plain types."""

    rows: list[dict[str, Any]]  # one a measurement, see `lt_lib.training.Recorder`
    metrics: dict[str, Any]  # see `final_metrics`
    weights: dict[str, Tensor]  # the network's state dict, on the CPU


Save = Callable[[Checkpoint], None]
Progress = Callable[[int, int], None]


class _Saver:
    def __init__(self, recorder: Recorder, save: Save | None, progress: Progress | None) -> None:
        self.recorder, self.save, self.progress = recorder, save, progress
        self.saved = time.monotonic()

    def on_step_end(self, epoch: int, batch: int, trainer: Trainer) -> None:
        if self.save is not None and time.monotonic() - self.saved >= SAVE_SECONDS:
            self.save(Checkpoint(trainer.state(epoch, batch), self.recorder.rows))
            self.saved = time.monotonic()

    def on_epoch_end(self, epoch: int, trainer: Trainer) -> None:
        if self.save is not None and epoch < trainer.config.epochs:
            self.save(Checkpoint(trainer.state(epoch), self.recorder.rows))
            self.saved = time.monotonic()
        if self.progress is not None:
            self.progress(epoch, trainer.config.epochs)


def make_net(config: RunConfig, split: Split) -> nn.Module:
    """Return the run's network with its initial weights, which depend on `config.seed` alone.

    It has the further heads that the loss trains, whether `config.net` names them or not.
    """
    wanted = {"extras": loss_of(config, split).extras, **config.net}
    net: nn.Module = build_net(wanted, split.classes, split.train.images.shape[1], seed=config.seed)
    return net


def loss_of(config: RunConfig, split: Split) -> ClassLoss:
    """Return the run's loss before its first epoch."""
    return loss_from(config.loss, split)


def loss_from(settings: Mapping[str, Any], split: Split) -> ClassLoss:
    """Return the loss of a mapping with `name` and its settings, for the training counts of `split`."""
    hyper = {name: value for name, value in settings.items() if name != "name"}
    return make_loss(settings["name"], split.counts, **hyper)


def to_stem(config: RunConfig, checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint`, taken within the loss's plain epochs, as the cross-entropy run has it."""
    tensors = {n: t for n, t in checkpoint.state.tensors.items() if not n.startswith("loss.")}
    own = epoch_weights(loss_of(config, config.split()))
    rows = [{name: value for name, value in row.items() if name not in own} for row in checkpoint.rows]
    return Checkpoint(replace(checkpoint.state, tensors=tensors), rows)


def from_stem(config: RunConfig, stem: Checkpoint) -> Checkpoint:
    """Return the cross-entropy run's `stem` as the run of `config` would have it; undoes `to_stem`.

    The loss has seen no batch: the columns of its weights are NaN.
    """
    loss = loss_of(config, config.split())
    loss.set_epoch(stem.state.epoch - 1, config.training.epochs)
    own = {f"loss.{name}": value for name, value in loss.state_dict().items()}
    rows = [row | epoch_weights(loss) for row in stem.rows]
    return Checkpoint(replace(stem.state, tensors=stem.state.tensors | own), rows)


def execute(
    config: RunConfig,
    checkpoint: Checkpoint | None = None,
    save: Save | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Train and measure one run; with `checkpoint`, go on from it to the same bits.

    Args:
        config: the run.
        checkpoint: of the same run, from an earlier call's `save`.
        save: called with a Checkpoint after each epoch but the last, and each `SAVE_SECONDS` within one.
        progress: called with (finished epochs, epochs) after each epoch.

    Raises:
        ValueError: bad settings or data, or a checkpoint of another run.
        FloatingPointError: the loss became NaN or infinite.
    """
    split = config.split()
    normalise = normalisation(split.train)
    model = make_net(config, split)
    loss = loss_of(config, split)
    rows = checkpoint.rows if checkpoint else []
    recorder = Recorder(split.train, split.test, split.classes, config.measure_every, rows)
    callbacks: list[Callback] = [recorder, _Saver(recorder, save, progress)]
    state = checkpoint.state if checkpoint else None
    train(model, loss, split.train, config.training, config.seed, normalise, callbacks, state)
    with cpu_threads(config.training.threads):
        metrics = final_metrics(model, split, normalise, recorder.rows)
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    return Outcome(recorder.rows, metrics, weights)


def final_metrics(
    model: nn.Module, split: Split, normalise: tuple[Tensor, Tensor], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the metrics after the last epoch, in JSON types (None for NaN).

    Keys `train`, `calibration` (None without one) and `test`: accuracies `plain`, `balanced`, `sigma`
    (population std over classes), `worst`, `per_class` (C,), all in 0..1, `class_loss` (C,) in nats,
    `rho`, `ratio` (max / min); `collapse` on the training features; `best_epoch_selected_on_test`: the
    measured epoch with the best balanced test accuracy. Such a value is selected on test data, and so
    too high: it only shows how much selection would flatter.
    """
    parts = {"train": split.train, "calibration": split.calibration, "test": split.test}
    metrics: dict[str, Any] = dict.fromkeys(parts)
    for name, part in parts.items():
        if part is not None and len(part):
            seen = evaluate(model, part, normalise)
            metrics[name] = _part_metrics(seen, split.classes)
            if name == "train":
                metrics["collapse"] = collapse_of(model, seen, split.classes)
    metrics["best_epoch_selected_on_test"] = _best(rows)
    plain: dict[str, Any] = _without_nan(metrics)
    return plain


def _part_metrics(seen: Predictions, classes: int) -> dict[str, Any]:
    found = accuracy(seen.logits, seen.labels, classes)
    losses = class_losses(seen.cross_entropy(), seen.labels, classes)
    return {
        "plain": float(found.plain),
        "balanced": float(found.balanced),
        "sigma": float(found.sigma),
        "worst": float(found.worst),
        "per_class": torch.as_tensor(found.per_class).tolist(),
        "class_loss": losses.tolist(),
        "rho": loss_imbalance(losses),
        "ratio": loss_ratio(losses),
    }


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    balanced = [
        float(torch.tensor(row["test_class_accuracy"], dtype=torch.float64).nanmean()) for row in rows
    ]
    best = max(range(len(rows)), key=lambda i: (balanced[i], -i))
    return {"epoch": rows[best]["epoch"], "balanced": balanced[best]}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and value - value != 0 else value
