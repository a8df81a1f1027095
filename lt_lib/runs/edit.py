"""What `RunConfig.after` does to a trained network. Nothing here touches the store.

The keys of runs with `after` follow the code from here on; those of plain runs do not.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from lt_lib.data import Split, normalisation
from lt_lib.posthoc import adjusted_head, choose_tau, prior_shift, tau_scales, with_head
from lt_lib.runs.after import CALIBRATION
from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import Outcome, final_metrics, loss_from, make_net
from lt_lib.training import TrainConfig, cpu_threads, evaluate, repeatable, resolve_device
from lt_lib.training.pixels import MEMORY_FORMATS
from lt_lib.training.two_stage import (
    check_second_stage,
    learn_weight_scales,
    retrain_classifier,
    second_stage,
)

Normalise = tuple[Tensor, Tensor]
Edited = tuple[nn.Module, dict[str, Any]]  # a head, and what was found on the way, in JSON types


def check_after(config: RunConfig) -> None:
    """Refuse a second stage that cannot be trained, before the first one is.

    Raises:
        ValueError: its loss or its training is badly set, or they do not fit each other or the network.
    """
    if config.after is not None and "loss" in config.after:
        split = config.split()
        stage, loss = _stage(config, config.after), loss_from(config.after["loss"], split)
        check_second_stage(make_net(config, split), loss, stage)


def edit(config: RunConfig, model: nn.Module, history: dict[str, np.ndarray]) -> Outcome:
    """Edit the trained network of `config.base()` as `config.after` says, and measure it like any run.

    The metrics have one more entry, `after`: the `tau` that was used, with the `grid` and the calibration
    `scores` where it was chosen, or the learned `scales`. History, and with it `best_epoch_selected_on_test`,
    are the base run's.

    Args:
        config: with `after`.
        model: the trained network; changed in place.
        history: of the base run.

    Raises:
        ValueError: bad settings, or a network whose head cannot be edited.
        FloatingPointError: the second stage's loss became NaN or infinite.
    """
    after = config.after
    assert after is not None
    split, device = config.split(), resolve_device(config.training.device)
    normalise = normalisation(split.train)
    model = model.to(device).to(memory_format=MEMORY_FORMATS[config.training.memory_format])
    rows = _rows(history)
    with cpu_threads(config.training.threads), repeatable(device):
        head, found = _EDITS[after["name"]](config, after, model, split, normalise)
        changed = with_head(model, head).eval()
        metrics = final_metrics(changed, split, normalise, rows) | {"after": found}
    weights = {name: value.detach().cpu().contiguous() for name, value in changed.state_dict().items()}
    return Outcome(rows, metrics, weights)


def _logit_adjustment(
    config: RunConfig, after: Mapping[str, Any], model: Any, split: Split, normalise: Normalise
) -> Edited:
    def head(tau: float) -> nn.Module:
        return adjusted_head(model.head, shift=prior_shift(split.counts, tau))

    return _at_tau(after["tau"], head, model, split, normalise)


def _tau_norm(
    config: RunConfig, after: Mapping[str, Any], model: Any, split: Split, normalise: Normalise
) -> Edited:
    def head(tau: float) -> nn.Module:
        return adjusted_head(model.head, tau_scales(model.head.weight_matrix(), tau), bias=after["bias"])

    return _at_tau(after["tau"], head, model, split, normalise)


def _at_tau(
    tau: Any, head: Callable[[float], nn.Module], model: nn.Module, split: Split, normalise: Normalise
) -> Edited:
    if tau != CALIBRATION:
        return head(tau), {"tau": tau}
    assert split.calibration is not None
    seen = evaluate(model, split.calibration, normalise)
    features = seen.features.to(next(model.parameters()).device)
    chosen = choose_tau(lambda tau: head(tau)(features).detach(), seen.labels, split.classes)
    found = {"tau": chosen.tau, "grid": chosen.grid.tolist(), "scores": chosen.scores.tolist()}
    return head(chosen.tau), found | {"measure": chosen.measure}


def _crt(
    config: RunConfig, after: Mapping[str, Any], model: Any, split: Split, normalise: Normalise
) -> Edited:
    stage, loss = _stage(config, after), loss_from(after["loss"], split)
    return retrain_classifier(model, loss, split.train, stage, config.seed, normalise, after["features"]), {}


def _lws(
    config: RunConfig, after: Mapping[str, Any], model: Any, split: Split, normalise: Normalise
) -> Edited:
    stage, loss, bias = _stage(config, after), loss_from(after["loss"], split), after["bias"]
    scales = learn_weight_scales(
        model, loss, split.train, stage, config.seed, normalise, after["features"], bias
    )
    return adjusted_head(model.head, scales, bias=bias), {"scales": scales.tolist()}


_EDITS: dict[str, Callable[[RunConfig, Mapping[str, Any], Any, Split, Normalise], Edited]] = {
    "logit_adjustment": _logit_adjustment,
    "tau_norm": _tau_norm,
    "crt": _crt,
    "lws": _lws,
}


def _stage(config: RunConfig, after: Mapping[str, Any]) -> TrainConfig:
    return second_stage(config.training, **after["training"])


def _rows(history: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    measurements = len(history["epoch"])
    return [{name: values[i].tolist() for name, values in history.items()} for i in range(measurements)]
