"""From a profile's settings to the configuration of a run."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lt_lib.runs.config import DATA_DEFAULTS, RunConfig
from lt_lib.training import TrainConfig


def config_from_profile(profile: Any, loss: str | Mapping[str, Any], seed: int, **over: Any) -> RunConfig:
    """Return the RunConfig of one loss and seed under a profile.

    Args:
        profile: from `lt_lib.profiles.load`.
        loss: a loss's name, or a mapping with `name` and its settings.
        seed: training seed.
        over: replaces a setting: an entry of `data` (such as `imbalance`), a field of TrainConfig (such as
            `epochs`), `net` (entries to change), `data_seed`, `measure_every` or `after`.

    Raises:
        ValueError: `over` holds an unknown name, or a setting is bad.
    """
    data = {"name": profile.data, "root": profile.root}
    data |= {name: getattr(profile, name) for name in _DATA}
    training = {**dict(profile.training), **{n: getattr(profile, n) for n in _PROCESS}}
    net = dict(profile.net)
    rest = {"data_seed": profile.data_seed, "measure_every": profile.measure_every, "after": None}
    for name, value in over.items():
        if name == "net":
            net |= value
            continue
        _owner(name, data, training, rest)[name] = value
    return RunConfig(
        data=data,
        net=net,
        loss={"name": loss} if isinstance(loss, str) else loss,
        training=TrainConfig.from_dict(training),
        seed=seed,
        **rest,
    )


_DATA = ("largest", "imbalance", "calibration", "test", "draw", "size", "memory_limit")
_PROCESS = ("precision", "memory_format", "device", "threads")


def _owner(name: str, data: dict[str, Any], training: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    owners = [(rest, rest), (data, DATA_DEFAULTS), (training, [field.name for field in fields(TrainConfig)])]
    for owner, names in owners:
        if name in names and name != "name":
            return owner
    known = sorted({*rest, *DATA_DEFAULTS, *(field.name for field in fields(TrainConfig)), "net"} - {"name"})
    raise ValueError(f"`over` knows {', '.join(known)}; found `{name}`.")
