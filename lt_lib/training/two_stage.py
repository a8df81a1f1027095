"""Two-stage training: a new classifier, or new lengths of the old one's rows, on a network that stands still.

Both are trainings by `train` of a small head, so data order, augmentation, optimiser, schedule, precision and
determinism from (seed, epoch) are those of every training here; the network is in eval mode throughout.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lt_lib._checks import check_choice
from lt_lib.nets.heads import LinearHead
from lt_lib.posthoc.heads import BIASES, adjusted_head
from lt_lib.training.config import TrainConfig, resolve_device
from lt_lib.training.evaluate import evaluate
from lt_lib.training.loop import train
from lt_lib.training.numerics import cpu_threads, repeatable
from lt_lib.training.pixels import MEMORY_FORMATS, Images
from lt_lib.training.recipes import check_parts, check_recipes
from lt_lib.training.seeding import epoch_seed

FEATURES = ("augmented", "once")
_STAGE, _START = 1001, 1002  # purposes, beside those of `lt_lib.training.seeding`


def second_stage(config: TrainConfig, **changes: Any) -> TrainConfig:
    """Return the settings of a second stage after a training with `config`.

    As in Kang et al. 2020 (arXiv 1910.09217): the learning rate starts again at its full value and falls to
    zero by a cosine within 10 epochs, and classes are sampled alike. No warm-up, no milestones, one view; the
    rest (batch, optimiser, momentum, weight decay, augmentation, precision) as before.

    Args:
        config: of the first stage.
        changes: fields of TrainConfig that differ, such as `epochs`, `lr` or `sampling`.

    Raises:
        ValueError: a field is unknown or out of range.
    """
    stage = replace(
        config,
        epochs=10,
        schedule="cosine",
        warmup=0,
        milestones=(),
        order=None,
        phase=TrainConfig.phase,
        sampling="balanced",
        views="one",
    )
    return TrainConfig.from_dict({**stage.to_dict(), **changes})


def retrain_classifier(
    model: nn.Module,
    loss: nn.Module,
    part: Images,
    config: TrainConfig,
    seed: int,
    normalise: tuple[Any, Any],
    features: str = "augmented",
) -> LinearHead:
    """Return a new linear classifier, trained on the features of `model`; the model stays as it is.

    Classifier re-training (cRT) of Kang et al. 2020 (arXiv 1910.09217, section 4): weights and bias start
    anew (normal with variance 2/d, and 0) and are trained alone, by class-balanced sampling (q = 0 in their
    eq. 1) of training images, with cross-entropy. Any other loss can stand for `loss`, and any sampling in
    `config`: inverse reweighting with `sampling="instance"` is the two-stage host of a reweighting method.

    The released code differs from the paper's "fixed" backbone: it calls `train()` on the frozen network, so
    that BatchNorm normalises by the batch and its running statistics drift to the class-balanced images; here
    they stay. It also draws four images of a class at a time, cycles through shuffled classes instead of
    drawing them independently, takes no short last batch, steps the rate before the first epoch (so that the
    cosine starts one step down and changes once an epoch) and reports the epoch with the best validation
    accuracy; here the last epoch counts.

    For a host with a cosine or ETF head the new classifier is linear in what that head sees, see
    `adjusted_head`: its rows may have any length. A BatchNorm in the head stays as it is, too.

    Args:
        model: trained, with `features(x)` (B, d) and `head`.
        loss: maps logits, labels (and features) to a scalar; none that trains heads of its own.
        part: training images and labels.
        config: of this stage, see `second_stage`.
        seed: of initial weights, order and augmentation; unrelated to a first stage of the same seed.
        normalise: (mean (ch,), std (ch,)), as in the first stage.
        features: "augmented": each drawn image is augmented anew and goes through the network, as published.
            "once": features of the images as they are, computed once; faster by about the number of epochs,
            but a network that fits its training images has collapsed features there, which vary less than
            those of new images. Augmented by default, for the published procedure.

    Raises:
        ValueError: see `train`; the network lacks `features` or `head`, the loss needs heads of its own or
            starts something after the last epoch, or `features` is unknown.
        FloatingPointError: the loss or the classifier became NaN or infinite.
    """
    classifier = _linear_head(model)
    classes, dim = classifier.weight.shape
    start = LinearHead(dim, classes, seed=epoch_seed(seed, 0, _START))
    classifier.load_state_dict(start.state_dict(), strict=False)  # what it sees features through stays
    trained: LinearHead = _train_head(classifier, model, loss, part, config, seed, normalise, features)
    return trained


class WeightScales(nn.Module):
    """Logits of a fixed linear head whose rows are multiplied by trainable scales f (C,), which start at 1.

    Args:
        head: linear in what it sees; copied, not trained.
        bias: "scale": f_c (w_c h + b_c); "keep": f_c w_c h + b_c; "drop": f_c w_c h.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, head: LinearHead, bias: str = "scale") -> None:
        super().__init__()
        check_choice(bias, BIASES, "bias")
        offset = head.bias_vector()
        assert offset is not None
        self.reading = bias
        self.head = copy.deepcopy(head)  # for what it sees features through, without weights
        self.head.weight = self.head.bias = None  # type: ignore[assignment]
        self.register_buffer("weight", head.weight.detach().clone())
        self.register_buffer("bias", offset.detach().clone() * (bias != "drop"))
        self.scales = nn.Parameter(torch.ones_like(self.bias))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, C) of features (B, d)."""
        return linear(self.inputs(features), self.weight_matrix(), self.bias_vector())

    def inputs(self, features: Tensor) -> Tensor:
        """Return the vectors (B, d) that `weight_matrix` acts on."""
        return self.head.inputs(features)

    def weight_matrix(self) -> Tensor:
        """Return the scaled rows f_c w_c, (C, d)."""
        return self.weight * self.scales[:, None]

    def bias_vector(self) -> Tensor:
        """Return the bias as it is read, (C,)."""
        return self.bias * self.scales if self.reading == "scale" else self.bias


def learn_weight_scales(
    model: nn.Module,
    loss: nn.Module,
    part: Images,
    config: TrainConfig,
    seed: int,
    normalise: tuple[Any, Any],
    features: str = "augmented",
    bias: str = "scale",
) -> Tensor:
    r"""Return one scale a class, (C,) float32 on the CPU, for the rows of the model's classifier.

    Learnable weight scaling (LWS) of Kang et al. 2020 (arXiv 1910.09217, section 4):
    :math:`\tilde w_c=f_cw_c`, where features and directions stay and f is trained by class-balanced sampling.
    It starts at ones, as in the released code. Give the scales to
    `adjusted_head(model.head, scales, bias=bias)`.

    The paper's equation has no bias; the released code scales the logit, bias included, which is `bias`
    "scale" here. As there, weight decay pulls the scales to 0, not to 1. The other differences are those of
    `retrain_classifier`; its configuration trains for 5 epochs instead of 10.

    Args:
        model: trained, with `features(x)` (B, d) and `head`.
        loss: see `retrain_classifier`.
        part: training images and labels.
        config: of this stage, see `second_stage`.
        seed: of order and augmentation.
        normalise: (mean (ch,), std (ch,)), as in the first stage.
        features: "augmented" or "once", see `retrain_classifier`.
        bias: "scale", "keep" or "drop", see `WeightScales`.

    Raises:
        ValueError: see `retrain_classifier`; or `bias` is unknown.
        FloatingPointError: the loss or a scale became NaN or infinite.
    """
    head = WeightScales(_linear_head(model), bias)
    _train_head(head, model, loss, part, config, seed, normalise, features)
    return head.scales.detach().cpu()


def check_second_stage(model: nn.Module, loss: nn.Module, config: TrainConfig) -> None:
    """Refuse a second stage that cannot be trained, before any time goes into the first.

    Args:
        model: the network, trained or not.
        loss: of the second stage; its clock is set to the first epoch.
        config: of this stage.

    Raises:
        ValueError: the network or its head does not do, the loss trains heads of its own, does not fit a
            linear head, or starts something after the last epoch of `config`.
    """
    _check_loss(loss)
    check_recipes(_OnFixedFeatures(model, _linear_head(model)), loss)
    set_epoch: Any = getattr(loss, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(0, config.epochs)


def _linear_head(model: Any) -> LinearHead:
    check_parts(model, ("features", "head"), "two-stage")
    return adjusted_head(model.head)


class _OnFixedFeatures(nn.Module):
    """A head on a network that stands still: it is no submodule, so that nothing trains or moves it."""

    def __init__(self, backbone: Any, head: nn.Module) -> None:
        super().__init__()
        self._backbone = (backbone,)
        self.head = head

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Return the features (B, d), without a gradient."""
        features: Tensor = self._backbone[0].features(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.features(x))
        return logits


class _Stored:
    """The "network" of features that were computed before and stand in place of images, (n, d, 1, 1)."""

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@dataclass(frozen=True)
class _Features:
    images: Tensor  # (n, d, 1, 1)
    labels: Tensor  # (n,)


def _train_head(
    head: Any,
    model: nn.Module,
    loss: nn.Module,
    part: Images,
    config: TrainConfig,
    seed: int,
    normalise: tuple[Any, Any],
    features: str,
) -> Any:
    """Train `head` in place on the features of a copy of `model`; return it on the model's device."""
    check_choice(features, FEATURES, "features")
    _check_loss(loss)
    home, device = head.weight.device, resolve_device(config.device)
    network: Any = copy.deepcopy(model).to(device).to(memory_format=MEMORY_FORMATS[config.memory_format])
    network.eval().requires_grad_(False)
    if features == "once":
        with cpu_threads(config.threads), repeatable(device):
            part, normalise = _computed(network, part, config, normalise)
        network, config = _Stored(), replace(config, augment="none", views="one")
    train(_OnFixedFeatures(network, head), loss, part, config, epoch_seed(seed, 0, _STAGE), normalise)
    return head.to(home)


def _check_loss(loss: nn.Module) -> None:
    extras = [module.extras for module in loss.modules() if getattr(module, "extras", None) is not None]
    if extras:
        raise ValueError(
            f"A second stage trains one head on fixed features, but the loss `{extras[0]}` trains further "
            "heads and the features with them. Train the first stage with it, and pass another loss here, "
            "such as `ce`."
        )


def _computed(
    network: nn.Module, part: Images, config: TrainConfig, normalise: tuple[Any, Any]
) -> tuple[Images, tuple[Tensor, Tensor]]:
    layout = config.memory_format
    seen = evaluate(network, part, normalise, precision=config.precision, memory_format=layout)
    dim = seen.features.shape[1]
    return _Features(seen.features[:, :, None, None], seen.labels), (torch.zeros(dim), torch.ones(dim))
