"""YAML files of plain types in which no name stands twice."""

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a name that stands twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    doubled = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
    if doubled is not None:
        raise ValueError(f"`{doubled}` stands twice{node.start_mark}. Keep one of them.")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        ValueError: no UTF-8, no YAML, no mapping, or a name that stands twice; the sentence names the file.
    """
    try:
        # the loader is a SafeLoader: it builds plain types only
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not valid YAML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} must be UTF-8 text ({error}). Save it as UTF-8.") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{path.name} must map names to settings; found {type(entries).__name__}.")
    return entries
