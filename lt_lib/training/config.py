"""The settings of one training, validated on construction."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any

import torch

from lt_lib._checks import check_choice
from lt_lib.reweighting._entry import first_epoch
from lt_lib.training.mittag_leffler import LOWEST_ORDER
from lt_lib.training.pictures import PICTURES
from lt_lib.training.sampling import SAMPLINGS

OPTIMISERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "step", "constant", "mittag_leffler")
AUGMENTATIONS = ("none", "shift", "crop_flip", "resized_crop", *PICTURES)
VIEWS = ("one", "three")
PRECISIONS = ("float32", "bfloat16")
MEMORY_FORMATS = ("contiguous", "channels_last")
DEVICES = ("auto", "cpu", "cuda", "mps")

_CHOICES = {
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "augment": AUGMENTATIONS,
    "views": VIEWS,
    "sampling": SAMPLINGS,
    "precision": PRECISIONS,
    "memory_format": MEMORY_FORMATS,
    "device": DEVICES,
}
# name -> (least, greatest, whole number)
_RANGES: dict[str, tuple[float, float, bool]] = {
    "epochs": (1, 100_000, True),
    "batch": (1, 1_000_000, True),
    "lr": (0, 1_000, False),
    "momentum": (0, 0.9999, False),
    "weight_decay": (0, 10, False),
    "warmup": (0, 100_000, True),
    "decay": (0, 1, False),
    "order": (LOWEST_ORDER, 1, False),
    "phase": (0, 1, False),
    "threads": (1, 1024, True),
    "workers": (0, 1024, True),
}


_MAY_BE_NONE = ("order", "threads")
_DEFAULTS: dict[str, Any] = {"milestones": (), "order": None, "phase": 0.8}


def check_number(value: Any, name: str, low: float, high: float, whole: bool = False) -> int | float:
    """Return `value` as a Python number if it is one (a whole one if `whole`) in [low, high].

    NumPy's scalars are numbers too.

    Raises:
        ValueError: a text, a boolean, a fraction where a whole number is meant, or out of range.
    """
    kind = "a whole number" if whole else "a number"
    good = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not good or not low <= value <= high:
        hint = (
            " (in YAML write 0.0005 or 5.0e-4, since 5e-4 is read as text)" if isinstance(value, str) else ""
        )
        limits = f"{low} to {high}" if whole else f"{low:g} to {high:g}"
        raise ValueError(f"`{name}` must be {kind} from {limits}; found {value!r}{hint}.")
    return int(value) if isinstance(value, Integral) else float(value)


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `train`. Numerical precision, memory format and threads change the bits, so they are here.

    Weight decay acts on every parameter, as in the code released with arXiv 2605.10047. The learning rate
    is set at each step (see `schedules`); `warmup` and `milestones` count epochs.

    `augment`: "none", "shift" (by a pixel), "crop_flip" (by up to 4 pixels, and mirrored) move pixels, in
    tensor form; "resized_crop" interpolates, likewise; "autoaugment", "randaugment", "simclr" and "imagenet"
    go picture by picture through torchvision (see `pictures.rendered`), in `workers` processes. What happens
    to an image depends on the seed, the epoch and the image alone (on its place in the epoch, where
    `sampling` draws with replacement).

    Raises:
        ValueError: a field is unknown, of the wrong type or out of range; the sentence names it.
    """

    epochs: int = 36
    batch: int = 64
    optimiser: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9  # SGD only
    weight_decay: float = 5e-4
    nesterov: bool = False  # SGD only
    schedule: str = "cosine"
    warmup: int = 0  # epochs of linear warm-up
    milestones: tuple[int, ...] = ()  # "step" only: epochs from which the rate is times `decay`
    decay: float = 0.1  # "step" only
    order: float | None = None  # "mittag_leffler" only; None: from the class counts, see `order_of`
    phase: float = 0.8  # "mittag_leffler" only: share of the epochs before its second phase
    augment: str = "none"
    views: str = "one"  # "three": two more, of SimCLR's kind, in the same batch; their logits enter no loss
    sampling: str = "instance"  # others draw with replacement, see `sampling`
    precision: str = "float32"  # "bfloat16": autocast of the forward pass, parameters stay float32
    memory_format: str = "contiguous"
    device: str = "auto"  # CUDA if there is one, else CPU; MPS on request
    workers: int = 0  # processes that read and augment pictures; no bit depends on them
    threads: int | None = 1  # CPU threads; None leaves the process as it is

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(getattr(self, name), choices, name)
        for name, (low, high, whole) in _RANGES.items():
            if not (name in _MAY_BE_NONE and getattr(self, name) is None):
                object.__setattr__(self, name, check_number(getattr(self, name), name, low, high, whole))
        if not isinstance(self.nesterov, bool):
            raise ValueError(f"`nesterov` must be true or false; found {self.nesterov!r}.")
        self._check_epochs()

    def _check_epochs(self) -> None:
        if not isinstance(self.milestones, list | tuple):
            raise ValueError(f"`milestones` must be a list of epochs; found {self.milestones!r}.")
        milestones = tuple(
            int(check_number(epoch, "milestones", 1, self.epochs, whole=True)) for epoch in self.milestones
        )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"`milestones` must rise; found {list(self.milestones)}.")
        object.__setattr__(self, "milestones", milestones)
        self._check_schedule()
        if self.warmup >= self.epochs and self.warmup > 0:
            raise ValueError(
                f"`warmup` must be shorter than the training of {self.epochs} epochs; found {self.warmup}."
            )
        if self.schedule == "mittag_leffler" and self.switch <= self.warmup:
            raise ValueError(
                f"`phase` must leave the first phase an epoch after the warm-up of {self.warmup} epochs; "
                f"found {self.phase} of {self.epochs} epochs. Raise `phase` or shorten `warmup`."
            )
        if self.nesterov and self.momentum == 0:
            raise ValueError("`nesterov` needs `momentum` above 0; found 0. Set `nesterov` to false.")

    def _check_schedule(self) -> None:
        """Refuse settings that the schedule does not use, `phase` only where it is not the default.

        `decay` passes: profiles keep it beside another schedule, and without milestones it says nothing.
        """
        used = {"step": ("milestones",), "mittag_leffler": ("order", "phase")}
        for schedule, names in used.items():
            given = [name for name in names if getattr(self, name) != _DEFAULTS[name]]
            if given and self.schedule != schedule:
                raise ValueError(
                    f"`{given[0]}` acts under the schedule `{schedule}` alone; found "
                    f"{getattr(self, given[0])!r} with the schedule `{self.schedule}`. Leave it at "
                    f"{_DEFAULTS[given[0]]!r}, or change `schedule`."
                )
        if self.schedule == "step" and not self.milestones:
            raise ValueError(
                "The schedule `step` needs `milestones`, the epochs from which the rate is times `decay`; "
                "found none. Pass for example (160, 180), or use `constant`."
            )

    @property
    def switch(self) -> int:
        """Epoch (from 0) that starts Mittag-Leffler's second phase; as a loss with `defer_epoch=phase`."""
        return self.epochs if self.phase == 1 else first_epoch(float(self.phase), self.epochs, "phase")

    @classmethod
    def from_dict(cls, settings: "Mapping[str, Any] | TrainConfig") -> "TrainConfig":
        """Build a config from a mapping; an unknown name is an error that lists the known ones."""
        if isinstance(settings, TrainConfig):
            return settings
        known = [field.name for field in fields(cls)]
        for name in settings:
            check_choice(name, known, "a field of TrainConfig")
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, defaults included, in JSON types."""
        return {**asdict(self), "milestones": list(self.milestones)}


def resolve_device(name: str) -> torch.device:
    """Return the device that `name` means here ("auto" is CUDA, else CPU; never MPS).

    Raises:
        ValueError: the named device is not there.
    """
    check_choice(name, DEVICES, "device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present[name]:
        raise ValueError(f"`device` is `{name}`, but PyTorch sees none here. Use `auto` or `cpu`.")
    return torch.device(name)
