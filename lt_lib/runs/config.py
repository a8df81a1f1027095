"""What defines a run: a configuration in JSON types, and the key made of it, its data and its code."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lt_lib import data as lt_data
from lt_lib._checks import check_choice
from lt_lib._home import project_root
from lt_lib.data import Split
from lt_lib.nets import net_config
from lt_lib.runs.fingerprint import code_fingerprint
from lt_lib.training import TrainConfig
from lt_lib.training.config import check_number

FORMAT = 1  # raise it when the meaning of a stored file changes
_CODE = "lt_lib.runs.experiment"  # the module whose imports decide what a run computes

DATA_DEFAULTS: dict[str, Any] = {
    "name": "digits",
    "root": None,  # where the files lie; the content counts, so the key leaves this out
    "largest": None,  # images of the largest class; None (and `imbalance` None): the training part as it is
    "imbalance": None,  # largest / smallest class, exponential in between
    "counts": None,  # images of each class, instead of the two above
    "calibration": 0,  # images a class (whole number) or stratified share
    "test": None,  # likewise; None: the source's own test part
}
_RANGES = {"seed": (0, 2**63 - 1), "data_seed": (0, 2**32 - 1), "measure_every": (1, 100_000)}


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on, its code apart. Mappings are completed with defaults and copied.

    Attributes:
        data: a name, or see `DATA_DEFAULTS`. Order: split first, then the training part alone is cut.
        net: fields of `lt_lib.nets.NetConfig`; kept with the default sizes and without None.
        loss: a name, or `name` and the loss's own settings, for `lt_lib.losses.make_loss`.
        training: a TrainConfig or its fields; `threads` must be a number, since it decides the bits.
        seed: initial weights, order of the data, augmentation; below 2^63.
        data_seed: split and long-tail subsampling; below 2^32.
        measure_every: epochs between measurements.

    Raises:
        ValueError: an unknown or missing entry, a number out of range, or a value that JSON cannot hold.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    net: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=lambda: {"name": "ce"})
    training: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0
    data_seed: int = 0
    measure_every: int = 1

    def __post_init__(self) -> None:
        data, net, loss = (_mapping(getattr(self, name), name) for name in ("data", "net", "loss"))
        for name in data:
            check_choice(name, DATA_DEFAULTS, "an entry of `data`")
        if "name" not in loss:
            raise ValueError(f'`loss` needs an entry "name", such as "ce"; found {loss}.')
        for name, (low, high) in _RANGES.items():
            object.__setattr__(self, name, check_number(getattr(self, name), name, low, high, whole=True))
        plain = {"data": {**DATA_DEFAULTS, **data}, "net": net, "loss": loss}
        for name, entries in plain.items():
            object.__setattr__(self, name, _jsonable(entries, name))
        object.__setattr__(self, "net", net_config(self.net).settings())
        object.__setattr__(self, "training", TrainConfig.from_dict(self.training))
        if self.training.threads is None:
            raise ValueError(
                "`threads` of a stored run must be a whole number, since it decides the bits; found None."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration in JSON types; `from_dict` reads it back."""
        return {
            "data": dict(self.data),
            "net": dict(self.net),
            "loss": dict(self.loss),
            "training": self.training.to_dict(),
            "seed": self.seed,
            "data_seed": self.data_seed,
            "measure_every": self.measure_every,
        }

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "RunConfig":
        """Build a configuration from `to_dict`'s mapping."""
        for name in entries:
            check_choice(name, cls.__dataclass_fields__, "a field of RunConfig")
        return cls(**entries)

    def split(self) -> Split:
        """Return the train, calibration and test parts (kept in memory for the next run on the same data)."""
        return _split(json.dumps(self.data, sort_keys=True), self.data_seed, _stamps(self.data))

    def key(self) -> str:
        """Return the run's name in the store: 32 hex digits from configuration, data, code and `FORMAT`.

        The data's folder does not count, their content does; 0 and 0.0 are one number. Reads the data.
        """
        entries = self.to_dict()
        del entries["data"]["root"]
        parts = {
            "config": _canonical(entries),
            "data": self.split().fingerprint(),
            "code": code_fingerprint(_CODE),
            "format": FORMAT,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def describe(self) -> str:
        """Return the settings that usually differ between runs, on one line, for messages."""
        loss = json.dumps(dict(self.loss), sort_keys=True)
        return f"data {self.data['name']}, imbalance {self.data['imbalance']}, loss {loss}, seed {self.seed}"


def _mapping(value: Any, name: str) -> dict[str, Any]:
    named = name != "net"  # data and losses have names
    if named and isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        allowed = 'a name or a mapping such as {"name": ...}' if named else 'a mapping such as {"depth": 8}'
        raise ValueError(f"`{name}` must be {allowed}; found {value!r}.")
    return dict(value)


def _canonical(value: Any) -> Any:
    """Return JSON types in which numbers that compare equal are written alike."""
    if isinstance(value, dict):
        return {name: _canonical(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_canonical(entry) for entry in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if whole else value


def _jsonable(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(entries, allow_nan=False, default=_listed))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must hold numbers, texts, lists and mappings only, so that it can be stored; {error}."
        ) from error
    return plain


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"found {type(value).__name__}")


def _stamps(data: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of an archive of the reader's own, which may be written anew meanwhile."""
    if not str(data["name"]).startswith("npz:"):
        return ()
    file = Path(data["root"] or "").expanduser() / Path(data["name"].removeprefix("npz:")).expanduser()
    # wherever the data floor may find it: a relative path is looked for in both
    paths = [path for path in (Path.cwd() / file, project_root() / file) if path.is_file()]
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)


@lru_cache(maxsize=4)
def _split(data: str, seed: int, stamps: tuple[tuple[str, int, int], ...]) -> Split:
    settings = json.loads(data)
    source = lt_data.load(settings["name"], root=settings["root"])
    parts = lt_data.split(source, calibration=settings["calibration"], test=settings["test"], seed=seed)
    counts = _counts(settings, parts.classes)
    return parts if counts is None else lt_data.long_tail(parts, counts, seed=seed)


def _counts(settings: Mapping[str, Any], classes: int) -> Any:
    given = {
        name: settings[name] for name in ("counts", "largest", "imbalance") if settings[name] is not None
    }
    if "counts" in given:
        if len(given) > 1:
            raise ValueError(
                f"`counts` stands alone; found also {', '.join(sorted(set(given) - {'counts'}))}."
            )
        return given["counts"]
    if not given:
        return None
    if "largest" not in given:
        raise ValueError("`imbalance` needs `largest`, the images of the largest class; found None.")
    return lt_data.exponential_counts(given["largest"], given.get("imbalance", 1), classes)
