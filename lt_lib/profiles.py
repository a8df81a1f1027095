"""Profiles: one validated parameter set a file, `notebooks/profiles/<name>.yaml`, the same names in each.

The schema stands below. A notebook may have a section of its own under `notebooks`, which holds settings that
only it knows (`PAGES` of `lt_lib._pages`) and may replace any common one for that page.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lt_lib._checks import check_choice
from lt_lib._home import project_root
from lt_lib._pages import PAGES
from lt_lib._rules import Choice, Group, Number, Rule, Settings, Text
from lt_lib._yaml import read_mapping
from lt_lib.data import DRAWS, check_data_files
from lt_lib.nets.build import NetConfig
from lt_lib.training.config import (
    DEVICES,
    MEMORY_FORMATS,
    PRECISIONS,
    TrainConfig,
)

PROCESS = ("precision", "memory_format", "device", "threads")

COMMON: dict[str, Rule] = {
    "data": Text(data=True),  # for `lt_lib.data.load`
    "root": Text(absent=True),  # folder of the data's files; null: where the source looks by itself
    "largest": Number(1, 10_000_000, absent=True),  # images of the largest class; null: data as they are
    "imbalance": Number(1, 100_000, whole=False, absent=True),  # largest / smallest class
    "calibration": Number(0, 1_000_000, share=True),  # images a class, or a share, set aside before the cut
    "test": Number(1, 1_000_000, share=True, absent=True),  # likewise; null: the source's own test part
    "draw": Choice(DRAWS),  # how images are drawn for the cut; cao2019: the literature's subsets
    "size": Number(1, 8192, absent=True),  # height and width of images from files; null: the source's own
    "memory_limit": Number(0, 2**50, absent=True),  # bytes above which they stay on disk; null: 1 GiB
    "data_seed": Number(0, 2**32 - 1),  # of the split and the cut, apart from the training seeds
    "net": Group(NetConfig),
    "training": Group(TrainConfig, outside=PROCESS),
    "precision": Choice(PRECISIONS),
    "memory_format": Choice(MEMORY_FORMATS),
    "device": Choice(DEVICES),
    "threads": Number(1, 1024),  # of each run
    "workers": Number(1, 1024),  # runs at once
    "seeds": Number(1, 1000),  # training seeds 0, 1, ...
    "measure_every": Number(1, 100_000),  # epochs between measurements
}

# common settings that a file may leave out, with the value that they have then
OPTIONAL: dict[str, Any] = {"draw": "generator", "size": None, "memory_limit": None}


@dataclass(frozen=True)
class Profile:
    """A validated profile, as one notebook sees it. Settings of the notebook's own are attributes, too."""

    name: str
    notebook: str | None
    data: str
    root: str | None
    largest: int | None
    imbalance: float | None
    calibration: int | float
    test: int | float | None
    draw: str
    size: int | None
    memory_limit: int | None
    data_seed: int
    net: Settings  # depth, width, head and the head's options
    training: (
        Settings  # fields of `lt_lib.training.TrainConfig` but precision, memory format, device, threads
    )
    precision: str
    memory_format: str
    device: str
    threads: int
    workers: int
    seeds: int
    measure_every: int
    page: Settings  # settings of the notebook alone

    def __getattr__(self, name: str) -> Any:
        page = self.__dict__.get("page", {})
        if name in page:
            return page[name]
        known = sorted({*(field.name for field in fields(self)), *page} - {"page"})
        raise AttributeError(f"The profile has no setting `{name}`; there are {', '.join(known)}.")


def names() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load(name: str, notebook: str | None = None, **overrides: Any) -> Profile:
    """Read and validate a whole profile; return it as `notebook` sees it.

    Args:
        name: a file of `notebooks/profiles`, without suffix.
        notebook: stem such as "03_training_dynamics"; its section goes before common settings.
        overrides: replace settings, common or of the notebook; `net` and `training` entries are merged.

    Raises:
        ValueError: an unknown profile or notebook, an unknown, missing or doubled setting, a value of a wrong
            type or out of range, anywhere in the file; the sentence names it and lists what is known.
    """
    entries, sections = _validated(name)
    if notebook is None:
        return _profile(name, None, entries, {}, overrides)
    check_choice(notebook, PAGES, "notebook")
    return _profile(name, notebook, entries, sections.get(notebook) or {}, overrides)


def check_ready(name: str) -> None:
    """Refuse a profile with which some page could not run, or whose public data set is not on this machine.

    Raises:
        ValueError: see `load`; a page lacks a setting; or files are missing, and how to get them.
    """
    entries, sections = _validated(name)
    for notebook in PAGES:
        _profile(name, notebook, entries, sections.get(notebook) or {}, {})
    for settings in (entries, *sections.values()):
        merged = {**entries, **(settings or {})}
        try:
            others = [merged.get("many_data"), merged.get("isic_data")]
            for source in (merged["data"], *filter(None, others)):
                check_data_files(source, merged["root"])
        except FileNotFoundError as error:
            raise ValueError(
                f"The profile `{name}` cannot run yet. {error} Or choose another profile, such as `digits`."
            ) from error


def _validated(name: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    check_choice(name, names(), "profile")
    entries = read_mapping(_folder() / f"{name}.yaml")
    sections = entries.pop("notebooks", None)
    sections = {} if sections is None else sections
    entries = {**OPTIONAL, **entries}
    _check(entries, COMMON, f"{name}.yaml", complete=True)
    _check_sections(sections, name)
    for notebook, section in sections.items():
        _profile(name, notebook, entries, section or {}, {})
    return entries, sections


def _profile(
    name: str,
    notebook: str | None,
    common: dict[str, Any],
    section: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> Profile:
    schema = {**COMMON, **PAGES.get(notebook or "", {})}
    _check_some(overrides, schema, "profiles.load")
    merged = dict(common)
    for layer in (section, overrides):
        for entry, value in layer.items():
            merged[entry] = {**merged[entry], **value} if isinstance(schema[entry], Group) else value
    _check_merged(merged, schema, f"{name}.yaml{', ' + notebook if notebook else ''}")
    page = {entry: merged.pop(entry) for entry in PAGES.get(notebook or "", {})}
    groups = {entry: Settings(_completed(merged[entry], schema[entry])) for entry in ("net", "training")}
    return Profile(name, notebook, **{**merged, **groups}, page=Settings(page))


def _completed(value: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    assert isinstance(rule, Group)
    whole = rule.kind(**value)
    names = [field.name for field in fields(rule.kind) if field.name not in rule.outside]
    return {name: getattr(whole, name) for name in names}


def _check_sections(sections: Any, name: str) -> None:
    if not isinstance(sections, Mapping):
        raise ValueError(f"`notebooks` in {name}.yaml must map notebooks to settings; found {sections!r}.")
    for notebook, section in sections.items():
        check_choice(notebook, PAGES, f"a notebook in {name}.yaml")
        if section is not None and not isinstance(section, Mapping):
            raise ValueError(f"`{notebook}` in {name}.yaml must map names to settings; found {section!r}.")
        _check_some(section or {}, {**COMMON, **PAGES[notebook]}, f"{name}.yaml, {notebook}")


def _check_merged(merged: Mapping[str, Any], schema: Mapping[str, Rule], where: str) -> None:
    """Check the settings that a page ends with: all are there, and they fit each other."""
    try:
        _check(merged, schema, where, complete=True)
        if "many_epochs" in schema:
            changed = {name: merged[f"many_{name}"] for name in ("epochs", "warmup", "augment")}
            TrainConfig(**{**merged["training"], **changed})
        for epochs in merged["lengths"] if "lengths" in schema else ():
            TrainConfig(**{**merged["training"], "epochs": epochs})
    except ValueError as error:
        raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from error


def _check_some(entries: Mapping[str, Any], schema: Mapping[str, Rule], where: str) -> None:
    """Check settings of which others are still to come: of a group the names, of the rest the values."""
    for name, value in entries.items():
        check_choice(name, schema, f"a setting in {where}")
        rule = schema[name]
        if isinstance(rule, Group):
            rule.check_names(value, name)
        else:
            rule.check(value, name)


def _check(
    entries: Mapping[str, Any], schema: Mapping[str, Rule], where: str, complete: bool = False
) -> None:
    for name, value in entries.items():
        check_choice(name, schema, f"a setting in {where}")
        schema[name].check(value, name)
    missing = [name for name in schema if name not in entries]
    if complete and missing:
        raise ValueError(f"{where} lacks `{missing[0]}`; a profile sets each of {', '.join(schema)}.")


def _folder() -> Path:
    return project_root() / "notebooks" / "profiles"
