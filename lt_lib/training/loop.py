"""The training loop: plain, deterministic, and stateless from epoch to epoch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lt_lib._checks import check_labels
from lt_lib._processes import current
from lt_lib.training.config import TrainConfig, check_number, resolve_device
from lt_lib.training.entry import (
    check_callbacks,
    check_class_counts,
    check_part,
    enough_values,
    first_not_finite,
)
from lt_lib.training.evaluate import evaluation
from lt_lib.training.feed import Feed
from lt_lib.training.numerics import autocast, cpu_threads, repeatable
from lt_lib.training.optimisers import make_optimiser
from lt_lib.training.pixels import MEMORY_FORMATS, Images, Normaliser, input_dtype
from lt_lib.training.recipes import Batch, check_recipes, recipe_of
from lt_lib.training.schedules import learning_rate, with_order
from lt_lib.training.seeding import MIX, epoch_generator, layer_randomness
from lt_lib.training.split import average_gradients, check_team, share_buffers, split_network
from lt_lib.training.state import TrainState, capture, restore


class Callback(Protocol):
    """Called after each epoch; it may read everything, and must leave model and loss as they are.

    One that has a method `on_step_end(epoch, batch, trainer)`, too, is called after each step but an epoch's
    last, with the finished epochs and the steps of the running one; `trainer.state(epoch, batch)` is then
    what it takes to go on from there.
    """

    def on_epoch_end(self, epoch: int, trainer: "Trainer") -> None:
        """Look at `trainer` after `epoch` finished epochs (1 for the first)."""


class Trainer:
    """One training in progress; callbacks see it. Use `train`, which builds and runs it.

    Attributes that callbacks may read: `model`, `loss`, `config`, `normalise`, `device`, `steps_per_epoch`,
    `lr` (of the epoch's last step), `epoch_loss` (mean of the objective over the epoch's images).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        part: Images,
        config: TrainConfig,
        seed: int,
        normalise: tuple[Any, Any],
    ) -> None:
        check_number(seed, "seed", 0, 2**63 - 1, whole=True)
        self.device = resolve_device(config.device)
        self.config, self.seed, self.normalise, self.team = config, seed, normalise, current()
        self.model = model.to(self.device).to(memory_format=MEMORY_FORMATS[config.memory_format])
        self.loss = loss.to(self.device)
        self.optimiser = make_optimiser(self.model, config)
        self._normaliser = Normaliser.build(
            normalise, part.images, self.device, config.memory_format, input_dtype(model)
        )
        self._feed = Feed(part, config, seed, self._normaliser)
        self._schedule = with_order(config, part.labels)
        self.steps_per_epoch = len(self._feed.bounds)
        self.recipe = recipe_of(self.loss)
        self.lr, self.epoch_loss = config.lr, float("nan")
        self.watchers: list[Callable[[int, int, Trainer], None]] = []  # called after each step
        self._begun: TrainState | None = None  # of the epoch in the middle of which to go on

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch (from 0) for the recipe in force, from (seed, epoch) alone."""
        return self._feed.batches(epoch, self.recipe, first)

    def run_epoch(self, epoch: int) -> None:
        """Train epoch `epoch` (from 0); nothing is read back from the device before its end.

        Raises:
            FloatingPointError: the objective, a parameter or a buffer became NaN or infinite.
        """
        self.model.train()
        self.loss.train()
        set_epoch: Any = getattr(self.loss, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch, self.config.epochs)
        self.recipe = recipe_of(self.loss)
        self._mix = epoch_generator(self.seed, epoch, MIX)
        self._total = torch.zeros((), dtype=torch.float64, device=self._accumulator_device())
        with layer_randomness(self.seed, epoch, self.device):
            first = self._go_on()
            for number, batch in enumerate(self.batches(epoch, first), first):
                self.lr = learning_rate(
                    self._schedule, epoch * self.steps_per_epoch + number, self.steps_per_epoch
                )
                value = self._step(batch)
                self._total += value.to(self._total.device) * len(batch.labels)
                for watch in self.watchers if number + 1 < self.steps_per_epoch else ():
                    watch(epoch, number + 1, self)
        share_buffers(self.model, self.team)
        self.epoch_loss = float(self._total) / self._feed.bounds[-1][1]
        self._check_finite(epoch)

    def _step(self, batch: Batch) -> Tensor:
        self.optimiser.zero_grad()
        network = split_network(self.model, self.team, len(batch.labels))
        with autocast(self.device, self.config.precision):
            value = self.recipe.objective(network, self.loss, batch, self._mix)
        value.backward()
        average_gradients(self.model, self.team)
        self.optimiser.step(self.lr)
        detached: Tensor = value.detach()
        return detached

    def _accumulator_device(self) -> torch.device:
        return torch.device("cpu") if self.device.type == "mps" else self.device  # MPS has no float64

    def _check_finite(self, epoch: int) -> None:
        when = f"in epoch {epoch + 1} of {self.config.epochs} (learning rate {self.lr:.3g})"
        lower = f"Lower `lr` (now {self.config.lr:g})"
        if self.epoch_loss - self.epoch_loss != 0:  # NaN and infinity alike
            raise FloatingPointError(
                f"The training loss became {self.epoch_loss} {when}. {lower} or lengthen `warmup` "
                f"(now {self.config.warmup})."
            )
        name = first_not_finite(self.model)
        if name is not None:
            raise FloatingPointError(
                f"`{name}` of the network became NaN or infinite {when}, where the loss was "
                f"{self.epoch_loss:.3g}. {lower} or bound the loss's weights."
            )

    def count_classes(self, images: Tensor) -> int:
        """Return the number of logits that the network gives for `images` (1, ch, H, W).

        Raises:
            ValueError: batch normalisation would see a single value a channel in the smallest batch.
        """
        smallest = min(stop - start for start, stop in self._feed.bounds)
        with evaluation(self.model), enough_values(self.model, smallest):
            return int(self.model(self._normaliser(images.to(self.device))).shape[1])

    def state(self, epoch: int, batch: int = 0) -> TrainState:
        """Return what is needed to go on after `epoch` finished epochs and `batch` steps of the next one.

        With `batch`, to be called by a callback's `on_step_end` alone: random states and the objective's sum
        so far belong to it ("random.*" and "total").
        """
        state = capture(epoch, self.model, self.loss, self.optimiser)
        if not batch:
            return state
        random = {"random.mix": self._mix.get_state(), "random.layers": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["random.device"] = torch.cuda.get_rng_state(self.device)
        extra = {"batch": batch, "total": float(self._total)}
        return replace(state, tensors=state.tensors | random, extra=state.extra | extra)

    def resume(self, state: TrainState) -> None:
        """Load `state`; the next call must be `run_epoch(state.epoch)`.

        Raises:
            ValueError: it belongs to another network, loss or optimiser.
        """
        restore(state, self.model, self.loss, self.optimiser)
        self._begun = state if state.batch else None

    def _go_on(self) -> int:
        """Return the epoch's first batch; in the middle of it once more load what `set_epoch` changed."""
        begun, self._begun = self._begun, None
        if begun is None:
            return 0
        restore(begun, self.model, self.loss, self.optimiser)
        self._mix.set_state(begun.tensors["random.mix"])
        torch.set_rng_state(begun.tensors["random.layers"])
        if self.device.type == "cuda" and "random.device" in begun.tensors:
            torch.cuda.set_rng_state(begun.tensors["random.device"], self.device)
        self._total.fill_(begun.extra["total"])
        return begun.batch


def train(
    model: nn.Module,
    loss: nn.Module,
    part: Images,
    config: TrainConfig,
    seed: int,
    normalise: tuple[Any, Any],
    callbacks: Iterable[Callback] = (),
    state: TrainState | None = None,
) -> nn.Module:
    """Train `model` in place on `part` and return it, on the device of `config`.

    The order of the data and the augmentation of an epoch depend on (seed, epoch) alone, so a training
    that goes on from `state` ends with the same bits as one that was never interrupted (same machine,
    same `threads`). Global random state and the number of threads are restored.

    Args:
        model: of float32 or float64, maps (B, ch, H, W) of that type to logits (B, C).
        loss: maps logits (B, C) and labels (B,) to a scalar, or takes what its `recipe` gives it (see
            `lt_lib.training.recipes`), asked after each `set_epoch(epoch, epochs)`, if it has them. The
            `class_counts` that `make_loss` keeps on it must be those of `part`; None passes.
        part: images (n, ch, H, W) and labels (n,).
        config: all settings.
        seed: of order, augmentation and random layers; not of the initial weights, which `model` brings.
        normalise: (mean (ch,), std (ch,)) of pixels in 0..1, from the training part.
        callbacks: called in order after each epoch.
        state: from `Trainer.state`, to go on after its epoch, or after its batch.

    Raises:
        ValueError: an unknown recipe or one that does not fit the network, a head that does not fit the
            loss, labels outside the logits' classes or not one an image, class counts of the loss that are
            not those of the labels, a callback without `on_epoch_end`, channels that do not fit, pixels or
            `normalise` not finite, batches too small for batch normalisation, a model of half precision, a
            bad seed, or a state of another network.
        FloatingPointError: the loss, a parameter or a buffer became NaN or infinite (once an epoch).
    """
    known = check_callbacks(callbacks)
    check_part(model, part)
    check_recipes(model, loss)
    with cpu_threads(config.threads):
        trainer = Trainer(model, loss, part, config, seed, normalise)
        with repeatable(trainer.device):
            classes = trainer.count_classes(part.images[:1])
            check_class_counts(loss, check_labels(part.labels, classes), classes)
            if state is not None:
                trainer.resume(state)
            trainer.watchers = [c.on_step_end for c in known if hasattr(c, "on_step_end")]
            check_team(trainer.team, trainer.model, trainer.loss, (config, seed, part.labels))
            for epoch in range(state.epoch if state else 0, config.epochs):
                trainer.run_epoch(epoch)
                for callback in known:
                    callback.on_epoch_end(epoch + 1, trainer)
    return trainer.model
