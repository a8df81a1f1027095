"""Where the project lies: the folder that holds `notebooks/`, `build/` and, by default, the run store."""

import os
from pathlib import Path


def project_root() -> Path:
    """Return `LT_HOME` if the environment sets it, else the folder above the `lt_lib` package."""
    named = os.environ.get("LT_HOME")
    return Path(named).expanduser().resolve() if named else Path(__file__).resolve().parent.parent
