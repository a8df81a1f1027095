"""What defines a run: a configuration in JSON types, and the key made of it, its data and its code."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lt_lib import data as lt_data
from lt_lib._checks import check_choice
from lt_lib._home import places
from lt_lib.data import DRAWS, Split
from lt_lib.data.partition import partition
from lt_lib.data.sampling import DEFAULT_TEST_SHARE
from lt_lib.nets import net_config
from lt_lib.runs._format import FORMAT, describe
from lt_lib.runs.after import completed
from lt_lib.runs.fingerprint import code_fingerprint
from lt_lib.training import TrainConfig
from lt_lib.training.config import check_number

_CODE = "lt_lib.runs.experiment"  # the module whose imports decide what a run computes
_AFTER_CODE = "lt_lib.runs.edit"  # of a run with `after`; it imports the one above

DATA_DEFAULTS: dict[str, Any] = {
    "name": "digits",
    "root": None,  # where the files lie; the content counts, so the key leaves this out
    "largest": None,  # images of the largest class; None (and `imbalance` None): the training part as it is
    "imbalance": None,  # largest / smallest class, exponential in between
    "counts": None,  # images of each class, instead of the two above
    "calibration": 0,  # images a class (whole number) or stratified share
    "test": None,  # likewise; None: the source's own test part
    "draw": "generator",  # or "cao2019": the images of the literature's subsets, whatever `data_seed`
    "size": None,  # height and width of images that come from files; None: the source's own
    "memory_limit": None,  # bytes above which such images stay on disk; None: 1 GiB
    "parts": "split",  # or "partition": classes may be too small for every part, copies stay together
    "damaged": "refuse",  # or "leave out": images that cannot be decoded, or hold NaN
}
_NEWER = ("parts", "damaged")  # entries that a key holds only where they are not the default
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
        after: None, or what is done to the trained network before it is measured: a name or a mapping with
            `name` and options, see `lt_lib.runs.after.AFTER`. The run without it is trained first, once for
            all that follow it.

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
    after: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        data, net, loss = (_mapping(getattr(self, name), name) for name in ("data", "net", "loss"))
        for name in data:
            check_choice(name, DATA_DEFAULTS, "an entry of data")
        check_choice(data.get("draw", "generator"), DRAWS, "draw")
        check_choice(data.get("parts", "split"), ("split", "partition"), "parts")
        if "name" not in loss:
            raise ValueError(f'`loss` needs an entry "name", such as "ce"; found {loss}.')
        for name, (low, high) in _RANGES.items():
            object.__setattr__(self, name, check_number(getattr(self, name), name, low, high, whole=True))
        plain = {"data": {**DATA_DEFAULTS, **data}, "net": net, "loss": loss}
        for name, entries in plain.items():
            object.__setattr__(self, name, _jsonable(entries, name))
        object.__setattr__(self, "net", net_config(self.net).settings())
        object.__setattr__(self, "training", TrainConfig.from_dict(self.training))
        if self.after is not None:
            after = completed(self.after, self.data["calibration"])
            object.__setattr__(self, "after", _jsonable(after, "after"))
        if self.training.threads is None:
            raise ValueError(
                "`threads` of a stored run must be a whole number, since it decides the bits; found None."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration in JSON types, without `after` if there is none; `from_dict` reads it."""
        entries: dict[str, Any] = {
            "data": dict(self.data),
            "net": dict(self.net),
            "loss": dict(self.loss),
            "training": self.training.to_dict(),
            "seed": self.seed,
            "data_seed": self.data_seed,
            "measure_every": self.measure_every,
        }
        return entries if self.after is None else {**entries, "after": dict(self.after)}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "RunConfig":
        """Build a configuration from `to_dict`'s mapping."""
        for name in entries:
            check_choice(name, cls.__dataclass_fields__, "a field of RunConfig")
        return cls(**entries)

    def base(self) -> "RunConfig":
        """Return the run that `after` edits: this one without it."""
        return self if self.after is None else replace(self, after=None)

    def split(self) -> Split:
        """Return the train, calibration and test parts (kept in memory for the next run on the same data)."""
        return _split(json.dumps(self.data, sort_keys=True), self.data_seed, _stamps(self.data))

    def key(self) -> str:
        """Return the run's name in the store: 32 hex digits from configuration, data, code and `FORMAT`.

        The data's folder and the processes that load them do not count, the data's content does; 0 and 0.0
        are one number. Reads the data.
        """
        entries = self.to_dict()
        del entries["data"]["root"], entries["training"]["workers"]
        for name in _NEWER:
            if entries["data"][name] == DATA_DEFAULTS[name]:
                del entries["data"][name]
        parts = {
            "config": _canonical(entries),
            "data": self.split().fingerprint(),
            "code": code_fingerprint(_CODE if self.after is None else _AFTER_CODE),
            "format": FORMAT,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def describe(self) -> str:
        """Return the settings that usually differ between runs, on one line, for messages."""
        return describe(self.to_dict())


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
    """Return name, size and time of a reader's own files, which may be written anew meanwhile."""
    kind, _, own = str(data["name"]).partition(":")
    if kind not in ("npz", "folder", "csv"):  # of a list the list alone, not its images
        return ()
    # wherever the data floor may find them: a relative path is looked for in both places
    found = [path for path in places(own, data["root"]) if path.exists()]
    paths = [file for path in found for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    stats = [(path, path.stat()) for path in paths if path.exists()]  # a link may lead nowhere
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


@lru_cache(maxsize=4)
def _split(data: str, seed: int, stamps: tuple[tuple[str, int, int], ...]) -> Split:
    settings = json.loads(data)
    published = settings["draw"] == "cao2019"
    if published and settings["calibration"]:
        raise ValueError(
            f"`draw` = cao2019 repeats subsets of a whole training part; found `calibration` = "
            f"{settings['calibration']}. Set `calibration` to 0, or `draw` to generator."
        )
    how = {name: settings[name] for name in ("root", "size", "memory_limit", "damaged")}
    source: Any = lt_data.load(settings["name"], **how)
    shares = {"calibration": settings["calibration"], "test": settings["test"], "seed": seed}
    if settings["parts"] == "partition":
        parts = partition(source, **{**shares, "test": shares["test"] or DEFAULT_TEST_SHARE})
    else:
        parts = lt_data.split(source, **shares)
    counts = _counts(settings, parts.classes)
    if counts is None:
        return parts
    return lt_data.long_tail(parts, counts, seed=0 if published else seed, draw=settings["draw"])


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
