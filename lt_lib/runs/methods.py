"""Methods by name, for data of one's own: what each changes in the configuration of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lt_lib._checks import check_choice
from lt_lib.runs.config import RunConfig
from lt_lib.training import TrainConfig

REFERENCE = "CE"  # what every method is compared with
LATE = 0.8  # share of the epochs of plain cross-entropy before a late method starts (as in notebook 05)


@dataclass(frozen=True)
class Method:
    """One method: its loss, and what else it sets."""

    loss: Mapping[str, Any]
    net: Mapping[str, Any] = field(default_factory=dict)  # fields of `lt_lib.nets.NetConfig`
    after: str | None = None  # see `lt_lib.runs.after.AFTER`
    shared: float = 0.0  # share of its epochs that are those of cross-entropy with the same seed


_COSINE = {"head": "cosine", "scale": 30.0, "bias": None}
METHODS: dict[str, Method] = {
    REFERENCE: Method({"name": "ce"}),
    "CE + logit adjustment": Method({"name": "ce"}, after="logit_adjustment", shared=1),
    "CE + cRT": Method({"name": "ce"}, after="crt", shared=1),
    "balanced softmax": Method({"name": "balanced_softmax"}),
    "class-balanced (late)": Method({"name": "class_balanced", "defer_epoch": LATE}, shared=LATE),
    "LDAM-DRW": Method({"name": "ldam", "scale": 30.0, "drw_epoch": LATE}, _COSINE),
    "focal": Method({"name": "focal"}),
    "inverse, released (late)": Method(
        {"name": "inverse", "preset": "as_released", "start_epoch": LATE}, shared=LATE
    ),
    "inverse, written": Method({"name": "inverse", "preset": "as_written", "alpha": 1.0}),
    "GLMC": Method({"name": "glmc"}, {"extras": "glmc"}),
    "BCL": Method({"name": "bcl"}, {"extras": "bcl"}),
}


def method_config(base: RunConfig, name: str, seed: int, epochs: int | None = None) -> RunConfig:
    """Return the run of one method and seed, like `base` in everything that the method does not set.

    A warm-up that is longer than the training is cut to the epochs before the last.

    Args:
        base: data, network, training settings and data seed; its loss and `after` are not looked at.
        name: one of `METHODS`.
        seed: training seed.
        epochs: of the training; None takes those of `base`.

    Raises:
        ValueError: the name is unknown, or a setting does not fit the method.
    """
    check_choice(name, METHODS, "the name of a method")
    method, training = METHODS[name], base.training.to_dict()
    training["epochs"] = base.training.epochs if epochs is None else epochs
    training["warmup"] = min(training["warmup"], training["epochs"] - 1)
    return replace(
        base,
        loss=method.loss,
        net={**base.net, **method.net},
        training=TrainConfig.from_dict(training),
        after=None if method.after is None else {"name": method.after},
        seed=seed,
    )
