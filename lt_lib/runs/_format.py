"""What can be said of a stored run without PyTorch, whose import takes seconds."""

import json
from collections.abc import Mapping
from typing import Any

FORMAT = 1  # raise it when the meaning of a stored file changes


def describe(entries: Mapping[str, Any]) -> str:
    """Return the settings of `RunConfig.to_dict` that usually differ between runs, on one line."""
    loss = json.dumps(dict(entries["loss"]), sort_keys=True)
    after = f", after {json.dumps(dict(entries['after']), sort_keys=True)}" if entries.get("after") else ""
    data = f"data {entries['data']['name']}, imbalance {entries['data']['imbalance']}"
    return f"{data}, loss {loss}, seed {entries['seed']}{after}"
