"""A callback that measures a training: class losses, rho, neural collapse, accuracies, weights."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.collapse import class_losses, loss_imbalance, neural_collapse
from lt_lib.metrics import per_class_accuracy
from lt_lib.training.config import check_number
from lt_lib.training.distributed import evaluate_together
from lt_lib.training.evaluate import Predictions, evaluation
from lt_lib.training.loop import Trainer
from lt_lib.training.pixels import Images

COLLAPSE = ("nc1", "nc2", "nc3", "nc4", "offset", "logit_scale")


def collapse_of(model: nn.Module, seen: Predictions, classes: int) -> dict[str, float | None]:
    """Return the fields `COLLAPSE` of `lt_lib.collapse.Collapse` for features of `model`.

    Fields that need the classifier are None for a head without `weight_matrix`.
    """
    weight, bias = classifier_of(model)
    features = seen.features if weight is None else _head_inputs(model, seen.features)
    found = neural_collapse(features, seen.labels, weight, bias, classes=classes)
    return {name: getattr(found, name) for name in COLLAPSE}


def classifier_of(model: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Return the head's weight (C, d) and bias (C,) on the CPU, detached; None where there is none."""
    head: Any = getattr(model, "head", None)
    if not hasattr(head, "weight_matrix"):
        return None, None
    weight, bias = head.weight_matrix(), head.bias_vector()
    return weight.detach().cpu(), None if bias is None else bias.detach().cpu()


def _head_inputs(model: nn.Module, features: Tensor) -> Tensor:
    """Return what the head's weight acts on: for a cosine head the features on the unit sphere."""
    head: Any = model.head
    if not hasattr(head, "inputs"):
        return features
    weight = head.weight_matrix()
    with evaluation(head):  # the head may hold a BatchNorm
        inputs: Tensor = head.inputs(features.to(weight)).to(features)
    return inputs


def epoch_weights(loss: nn.Module) -> dict[str, Any]:
    """Return what an inverse loss applied in the current epoch; empty for a loss without such weights.

    Keys: `weights` (C,), each class's mean weight over the batches that held it; `clamped_classes` and
    `clamped_samples`, the shares of class appearances and of samples whose weight was clamped. NaN
    where nothing was reweighted.
    """
    modules: Iterable[Any] = loss.modules()
    for module in modules:
        if hasattr(module, "mean_weights") and hasattr(module, "clamped_shares"):
            appearances, samples = module.clamped_shares()
            weights = module.mean_weights().detach().cpu().double().tolist()
            return {"weights": weights, "clamped_classes": appearances, "clamped_samples": samples}
    return {}


class Recorder:
    """Measures after every `every`-th epoch and after the last; one row a measurement, in `rows`.

    Everything is measured in eval mode on images without augmentation, in float32, with plain
    cross-entropy; the training is not affected. Of several processes each needs the recorder: they evaluate
    together. A row holds Python numbers and lists of C numbers (NaN
    for a class without images): `epoch` (finished epochs), `lr` (of the last step), `objective` (mean
    over the epoch, as trained), `train_class_loss`, `test_class_loss` (C,), `train_rho`, `test_rho`
    (population std / mean of the class losses), the fields `COLLAPSE` on the training features,
    `train_class_accuracy`, `test_class_accuracy` (C,), and what `epoch_weights` gives.

    Args:
        train: training images, at least two classes.
        test: test images.
        classes: C.
        every: epochs between measurements, at least 1.
        rows: earlier rows, to go on with.

    Raises:
        ValueError: `train` holds fewer than two classes, or `every` is no whole number from 1.
    """

    def __init__(
        self, train: Images, test: Images, classes: int, every: int = 1, rows: Iterable[dict[str, Any]] = ()
    ) -> None:
        check_number(every, "every", 1, 100_000, whole=True)
        present = len(train.labels.unique())
        if present < 2:
            raise ValueError(
                "`train` must hold images of two classes or more, since class losses and collapse compare "
                f"classes; found {present}. Measure a single class with `lt_lib.training.evaluate`."
            )
        self.train, self.test, self.classes, self.every = train, test, classes, every
        self.rows = list(rows)

    def on_epoch_end(self, epoch: int, trainer: Trainer) -> None:
        """Append a row if this epoch is to be measured."""
        if epoch % self.every == 0 or epoch == trainer.config.epochs:
            self.rows.append(self._measure(epoch, trainer))

    def _measure(self, epoch: int, trainer: Trainer) -> dict[str, Any]:
        row: dict[str, Any] = {"epoch": epoch, "lr": trainer.lr, "objective": trainer.epoch_loss}
        seen = {}
        for name, part in (("train", self.train), ("test", self.test)):
            layout, workers = trainer.config.memory_format, trainer.config.workers
            seen[name] = evaluate_together(
                trainer.model, part, trainer.normalise, memory_format=layout, workers=workers
            )
            row |= self._losses(name, seen[name])
        row |= collapse_of(trainer.model, seen["train"], self.classes)
        return row | epoch_weights(trainer.loss)

    def _losses(self, name: str, seen: Predictions) -> dict[str, Any]:
        losses = class_losses(seen.cross_entropy(), seen.labels, self.classes)
        right = per_class_accuracy(seen.logits, seen.labels, self.classes)
        return {
            f"{name}_class_loss": losses.tolist(),
            f"{name}_rho": loss_imbalance(losses),
            f"{name}_class_accuracy": torch.as_tensor(right).tolist(),
        }
