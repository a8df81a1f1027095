"""Fine-tuning of a trained network: with another loss, on calibration images, or off the span of spikes.

It stands apart from the training of runs, whose step it takes as it is: a fine-tuning is a training by the
same `Trainer`, of a copy of the network, whose optimiser may be kept from moving along given directions.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lt_lib._checks import check_choice, check_finite, check_labels
from lt_lib.curvature import orthonormal_rows
from lt_lib.curvature.basis import products
from lt_lib.curvature.class_gradients import Params
from lt_lib.curvature.problem import select
from lt_lib.training.config import TrainConfig
from lt_lib.training.entry import check_callbacks, check_class_counts, check_part
from lt_lib.training.loop import Callback, Trainer
from lt_lib.training.numerics import cpu_threads, repeatable
from lt_lib.training.optimisers import Optimiser
from lt_lib.training.pixels import Images
from lt_lib.training.recipes import Batch, check_recipes

Project = Tensor | Callable[[nn.Module], Tensor]

_ADAM = {"optimiser": "adamw", "lr": 1e-4, "weight_decay": 0.0}
PRESETS: dict[str, dict[str, Any]] = {
    "released": _ADAM | {"epochs": 3},
    "written": _ADAM | {"epochs": 15},
    "afterwards": {"optimiser": "sgd", "lr": 1e-4, "weight_decay": 0.0, "momentum": 0.0, "epochs": 5},
}


def fine_tuning(config: TrainConfig, preset: str = "released", **changes: Any) -> TrainConfig:
    """Return the settings of a fine-tuning after a training with `config`, constant learning rate.

    - "released": 3 epochs of Adam at 1e-4, what the logs of arXiv 2605.07790 say of its focal and
      class-balanced fine-tuning; "written": the 15 epochs of its text.
    - "afterwards": 5 epochs of plain SGD, what they say of the fine-tuning after surgery (its text: 15 of
      Adam). The learning rate is that of the others; choose your own for a network of another scale.

    Batch, augmentation, sampling and precision stay as before.

    Args:
        config: of the first training.
        preset: one of these.
        changes: fields of TrainConfig that differ.

    Raises:
        ValueError: the preset or a field is unknown, or a value is out of range.
    """
    check_choice(preset, PRESETS, "preset")
    plain: dict[str, Any] = {
        "schedule": "constant",
        "warmup": 0,
        "milestones": (),
        "order": None,
        "nesterov": False,
    }
    stage = replace(config, **plain, phase=TrainConfig.phase, views="one", **PRESETS[preset])
    return TrainConfig.from_dict({**stage.to_dict(), **changes})


def fine_tune(
    model: nn.Module,
    loss: nn.Module,
    part: Images,
    config: TrainConfig,
    seed: int,
    normalise: tuple[Any, Any],
    callbacks: Iterable[Callback] = (),
    *,
    project: Project | None = None,
    params: Params = None,
    freeze_norm: bool = False,
) -> nn.Module:
    """Return a copy of the model, trained on from its weights; the model itself stays as it is.

    As controls of surgery (arXiv 2605.07790): focal fine-tuning is `make_loss("focal", counts)`, the
    class-balanced one `make_loss("class_balanced", counts)`, on the training images; on calibration images
    (`part=split.calibration`, where the classes may count alike anyhow) it uses the very labels that surgery
    uses. Last-layer retraining on them is `retrain_classifier`, or `fit_last_layer`. Fine-tuning after
    surgery is the same call on the operated network, "bulk-projected" with `project=spikes`.

    With `project` the rows' span is taken out of each gradient before the optimiser sees it and out of each
    step that it then makes (Adam bends a gradient back into the span; so does weight decay). Given as a
    function, the rows are computed anew at the start of each epoch.

    Args:
        model: trained.
        loss: as in `train`.
        part: images and labels to train on; never those to report on.
        config: see `fine_tuning`.
        seed: of order and augmentation.
        normalise: (mean (ch,), std (ch,)), as in the first training.
        callbacks: as in `train`.
        project: rows (K, P) over the chosen parameters, in the order of `named_parameters()`, or a function
            of the network that returns them; None: plain fine-tuning. Other parameters move freely, those
            that do not require gradients not at all.
        params: patterns of the names of the chosen parameters; None: those that require gradients.
        freeze_norm: whether BatchNorm layers stay in eval mode, so that their running statistics, which few
            or class-balanced images would shift, are kept and used.

    Raises:
        ValueError: as `train`; or rows that do not fit.
        FloatingPointError: the loss, a parameter or a buffer became NaN or infinite.
    """
    known = check_callbacks(callbacks)
    check_part(model, part)
    check_recipes(model, loss)
    tuned = copy.deepcopy(model)
    with cpu_threads(config.threads):
        trainer = _FineTuner(tuned, loss, part, config, seed, normalise)
        trainer.freeze_norm = freeze_norm
        with repeatable(trainer.device):
            classes = trainer.count_classes(part.images[:1])
            check_class_counts(loss, check_labels(part.labels, classes), classes)
            trainer.watchers = [c.on_step_end for c in known if hasattr(c, "on_step_end")]
            plain = trainer.optimiser
            for epoch in range(config.epochs):
                if project is not None and (epoch == 0 or callable(project)):
                    rows = project(tuned) if callable(project) else project
                    trainer.optimiser = _OffSpan(plain, list(select(tuned, params).values()), rows)
                trainer.run_epoch(epoch)
                for callback in known:
                    callback.on_epoch_end(epoch + 1, trainer)
    return tuned


class _FineTuner(Trainer):
    freeze_norm = False

    def _step(self, batch: Batch) -> Tensor:
        if self.freeze_norm:
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return super()._step(batch)


class _OffSpan(Optimiser):
    """An optimiser that does not move the chosen parameters within the span of rows."""

    def __init__(self, inner: Optimiser, chosen: list[nn.Parameter], rows: Tensor) -> None:
        self.inner, self.chosen = inner, chosen
        self.parameters, self.config = inner.parameters, inner.config
        self.state, self.steps = inner.state, inner.steps
        size = sum(p.numel() for p in chosen)
        if not isinstance(rows, Tensor) or rows.ndim != 2 or rows.shape[1] != size:
            found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(f"`project` must be rows (K, {size}) over the chosen parameters; found {found}.")
        check_finite(rows, "project")
        # what is frozen must not be moved to keep the others off the span, so it has no part in the rows
        free = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in chosen])
        self.rows = orthonormal_rows(rows * free.to(rows)).to(chosen[0])

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Take one step off the span."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.chosen]
        for p, g in zip(self.chosen, self._split(self._inside(_flat(grads))), strict=True):
            if p.grad is not None:
                p.grad.sub_(g)
        before = _flat(self.chosen)
        self.inner.step(lr)
        for _ in range(2):  # the second pass takes out what rounding left
            inside = self._inside(_flat(self.chosen) - before)
            for p, part in zip(self.chosen, self._split(inside), strict=True):
                p.sub_(part)

    def _inside(self, v: Tensor) -> Tensor:
        return products(self.rows, v).to(v) @ self.rows

    def _split(self, v: Tensor) -> list[Tensor]:
        parts = v.split([p.numel() for p in self.chosen])
        return [part.view_as(p) for part, p in zip(parts, self.chosen, strict=True)]


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])
