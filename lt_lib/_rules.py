"""The kinds of settings that a profile can hold, each with its check."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from lt_lib._checks import check_choice
from lt_lib.data import check_data_name
from lt_lib.training.config import check_number


class Settings(Mapping[str, Any]):
    """A mapping that cannot change and whose entries are attributes, too."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.__dict__.update(entries)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"`{name}` is not set here; there are {', '.join(sorted(self))}.")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Settings cannot change; pass `{name}` to `profiles.load` instead.")


@dataclass(frozen=True)
class Number:
    """A number in [low, high], a whole one if `whole`; `share`: or a share in (0, 1); `absent`: or null."""

    low: float
    high: float
    whole: bool = True
    share: bool = False
    absent: bool = False

    def check(self, value: Any, name: str) -> None:
        """Refuse what does not fit."""
        if value is None and self.absent:
            return
        if self.share and isinstance(value, float) and 0 < value < 1:
            return
        check_number(value, name, self.low, self.high, self.whole)


@dataclass(frozen=True)
class Numbers:
    """A list of at least one number, each in [low, high], that rises."""

    low: float
    high: float

    def check(self, value: Any, name: str) -> None:
        """Refuse what does not fit."""
        if not isinstance(value, list) or not value:
            raise ValueError(f"`{name}` must be a list of numbers, such as [10, 100]; found {value!r}.")
        for number in value:
            check_number(number, name, self.low, self.high)
        if sorted(set(value)) != value:
            raise ValueError(f"`{name}` must rise; found {value}.")


@dataclass(frozen=True)
class Choice:
    """One of some texts."""

    names: tuple[str, ...]

    def check(self, value: Any, name: str) -> None:
        """Refuse what does not fit."""
        check_choice(value, self.names, name)


@dataclass(frozen=True)
class Text:
    """A text; `data`: the name of a data source."""

    absent: bool = False
    data: bool = False

    def check(self, value: Any, name: str) -> None:
        """Refuse what does not fit."""
        if value is None and self.absent:
            return
        if not isinstance(value, str) or not value:
            raise ValueError(f"`{name}` must be a text; found {value!r}.")
        if self.data:
            check_data_name(value)


@dataclass(frozen=True)
class Group:
    """Fields of a settings class, which validates them itself."""

    kind: type
    outside: tuple[str, ...] = ()  # fields that a profile sets at its top level

    def check(self, value: Any, name: str) -> None:
        """Refuse what does not fit."""
        self.check_names(value, name)
        self.kind(**value)

    def check_names(self, value: Any, name: str) -> None:
        """Refuse what is no mapping of known fields; their values are checked once they are together."""
        known = [field.name for field in fields(self.kind) if field.name not in self.outside]
        if not isinstance(value, Mapping):
            raise ValueError(f"`{name}` must be a mapping of {', '.join(known)}; found {value!r}.")
        for entry in value:
            check_choice(entry, known, f"an entry of {name}")


Rule = Number | Numbers | Choice | Text | Group
