"""Runs from a few lines: methods x imbalances x seeds, as `python -m lt_lib.runs sweep FILE` reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_lib import profiles
from lt_lib._checks import check_choice
from lt_lib._yaml import read_mapping
from lt_lib.runs.config import RunConfig
from lt_lib.runs.from_profile import config_from_profile
from lt_lib.runs.methods import METHODS, REFERENCE, method_config
from lt_lib.training.config import check_number

# name -> what it is; examples/cluster/sweep.yaml shows them
ENTRIES = {
    "profile": "a file in notebooks/profiles",
    "methods": "names of lt_lib.runs.methods",
    "losses": "losses of lt_lib.losses, by name or with settings",
    "imbalances": "largest / smallest class",
    "seeds": "a number n of training seeds 0, ..., n - 1, or a list of them",
    "over": "settings that replace those of the profile, as for config_from_profile",
    "configs": "further runs, written out in full",
}
_OWN = {"profile": "profile", "loss": "losses", "seed": "seeds", "imbalance": "imbalances"}


def read_grid(path: Path) -> dict[str, Any]:
    """Return the entries of a sweep's YAML file.

    Raises:
        ValueError: it is no such file, or no YAML mapping.
    """
    try:
        return read_mapping(path)
    except OSError as error:
        raise ValueError(f"The sweep's file {path} cannot be read ({error.strerror}).") from error


def grid(entries: Mapping[str, Any]) -> list[RunConfig]:
    """Return the runs of a sweep: (methods and losses) x imbalances x seeds, then `configs`.

    Args:
        entries: `ENTRIES`, each of which may be missing. Without methods, losses and configs the method is
            cross-entropy; without imbalances, that of the profile; without seeds, seed 0.

    Raises:
        ValueError: an unknown entry, an empty list, or a bad setting; the sentence names it.
    """
    for name in entries:
        check_choice(name, ENTRIES, "an entry of a sweep")
    alone = not {"methods", "losses", "configs"} & entries.keys()
    methods = _list(entries, "methods", [REFERENCE] if alone else [])
    for name in methods:
        check_choice(name, METHODS, "the name of a method")
    losses = _list(entries, "losses", [])
    found = [_written(entry, number) for number, entry in enumerate(_list(entries, "configs", []), 1)]
    if not (methods or losses):
        _refuse_grid(entries)
        return found
    return _product(entries, methods, losses) + found


def _product(entries: Mapping[str, Any], methods: list[Any], losses: list[Any]) -> list[RunConfig]:
    profile, over = profiles.load(entries.get("profile", "digits")), _over(entries)
    imbalances, seeds = _list(entries, "imbalances", [profile.imbalance]), _seeds(entries)
    found = []
    for imbalance in imbalances:
        base = config_from_profile(profile, "ce", 0, imbalance=imbalance, **over)
        found += [method_config(base, name, seed) for name in methods for seed in seeds]
        found += [
            config_from_profile(profile, loss, seed, imbalance=imbalance, **over)
            for loss in losses
            for seed in seeds
        ]
    return found


def _list(entries: Mapping[str, Any], name: str, otherwise: list[Any]) -> list[Any]:
    if name not in entries:
        return otherwise
    value = entries[name]
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{name}` of a sweep must be a list that is not empty; found {value!r}.")
    return value


def _seeds(entries: Mapping[str, Any]) -> list[int]:
    given = entries.get("seeds", 1)
    if isinstance(given, list):
        return [int(check_number(s, "seeds", 0, 2**63 - 1, True)) for s in _list(entries, "seeds", [])]
    return list(range(int(check_number(given, "seeds", 1, 1000, whole=True))))


def _over(entries: Mapping[str, Any]) -> dict[str, Any]:
    given = entries.get("over", {})
    if not isinstance(given, Mapping):
        raise ValueError(f"`over` of a sweep must be a mapping such as {{epochs: 3}}; found {given!r}.")
    for name in given:
        if name in _OWN:
            raise ValueError(f"`over` cannot set `{name}`: the sweep's own entry `{_OWN[name]}` does.")
    return {str(name): value for name, value in given.items()}


def _written(entry: Any, number: int) -> RunConfig:
    try:
        return RunConfig.from_dict(entry)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"Entry {number} of `configs` is no run: {error}") from error


def _refuse_grid(entries: Mapping[str, Any]) -> None:
    unused = sorted(entries.keys() & {"profile", "imbalances", "seeds", "over"})
    if unused:
        raise ValueError(
            f"`{unused[0]}` says nothing of runs that `configs` writes out in full. Leave it out, or add "
            "`methods` or `losses`."
        )
