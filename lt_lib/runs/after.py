"""What may follow a training: the options of `RunConfig.after`, completed with defaults and checked."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lt_lib._checks import check_choice
from lt_lib.training.config import TrainConfig, check_number

CALIBRATION = "calibration"  # the value of `tau` that asks for a choice on the calibration part
_TAU = 100.0  # |tau| at most

# name -> options with their defaults; what they do: lt_lib.posthoc and lt_lib.training.two_stage
AFTER: dict[str, dict[str, Any]] = {
    "logit_adjustment": {"tau": 1.0},
    "tau_norm": {"tau": CALIBRATION, "bias": "drop"},
    "crt": {"loss": {"name": "ce"}, "features": "augmented", "training": {"epochs": 10}},
    "lws": {"loss": {"name": "ce"}, "features": "augmented", "training": {"epochs": 5}, "bias": "scale"},
}
_CHOICES = {"bias": ("scale", "keep", "drop"), "features": ("augmented", "once")}
_OF_THE_RUN = ("threads", "device", "precision", "memory_format", "views")  # a second stage keeps them


def completed(after: Mapping[str, Any] | str, calibration: Any) -> dict[str, Any]:
    """Return `after` with every option of its name.

    Args:
        after: a name of `AFTER`, or a mapping with `name` and options.
        calibration: the run's `data["calibration"]`; 0 for no calibration part.

    Raises:
        ValueError: the name or an option is unknown, a value is not allowed, or `tau` is to be chosen without
            calibration data.
    """
    given = {"name": after} if isinstance(after, str) else after
    if not isinstance(given, Mapping) or "name" not in given:
        raise ValueError(
            '`after` must be None, a name or a mapping such as {"name": "logit_adjustment", "tau": 1.0}; '
            f"found {after!r}."
        )
    check_choice(given["name"], AFTER, "the name of after")
    options = {**AFTER[given["name"]]}
    known = ("name", *options)
    for name, value in given.items():
        check_choice(name, known, f"an option of after {given['name']}")
        options[name] = {**options[name], **_mapping(value)} if name == "training" else value
    for name, choices in _CHOICES.items():
        if name in options:
            check_choice(options[name], choices, name)
    if "tau" in options:
        options["tau"] = _tau(options["tau"], given["name"], calibration)
    if "loss" in options:
        options["loss"] = _loss(options["loss"])
        for name in options["training"]:
            check_choice(name, _second_stage_fields(), "a field of training in after")
    return options


def _tau(value: Any, name: str, calibration: Any) -> Any:
    if value != CALIBRATION:
        if isinstance(value, str):
            raise ValueError(f'`tau` must be a number or "{CALIBRATION}"; found {value!r}.')
        return check_number(value, "tau", -_TAU, _TAU)
    if calibration == 0:
        raise ValueError(
            f"`after` `{name}` chooses `tau` on calibration data, but the run sets none aside "
            "(`calibration` is 0) and test data must not choose. Set `calibration`, for example to 20 images "
            "a class, or pass `tau` as a number that is fixed in advance."
        )
    return value


def _loss(value: Any) -> dict[str, Any]:
    loss = {"name": value} if isinstance(value, str) else value
    if not isinstance(loss, Mapping) or "name" not in loss:
        raise ValueError(
            f'`loss` of `after` must be a name or a mapping such as {{"name": "ce"}}; found {value!r}.'
        )
    return dict(loss)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(
            f'`training` of `after` must be a mapping such as {{"epochs": 10}}; found {value!r}.'
        )
    return value


def _second_stage_fields() -> list[str]:
    return [field.name for field in fields(TrainConfig) if field.name not in _OF_THE_RUN]
