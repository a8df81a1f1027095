"""What each notebook was made with, and the table of the status page."""

import json
import os
import platform
import time
from typing import Any

import yaml

from lt_lib.runs.machine import machine, project_commit
from pipeline.convert import write_atomically
from pipeline.layout import Layout
from pipeline.progress import clock
from texts import plain

SHOWN = ("python", "torch", "numpy")  # versions that decide bits
COLUMNS = ("notebook", "profile", "seeds", "time", "finished", "commit", "machine", "versions")


def facts(layout: Layout, name: str, versions: dict[str, str]) -> dict[str, Any]:
    """Return what is true while the notebook `name` runs here, in JSON types."""
    seeds, data_seed = _seeds(layout, name)
    return {
        "profile": layout.profile,
        "seeds": seeds,
        "data_seed": data_seed,
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "finished": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": project_commit(),
        "machine": machine(),
        "system": platform.platform(terse=True),
        "versions": {package: versions.get(package, "") for package in SHOWN},
    }


def _seeds(layout: Layout, name: str) -> tuple[Any, Any]:
    """Return the number of seeds and the data seed that the profile sets for a notebook, None where none."""
    path = layout.notebooks / "profiles" / f"{layout.profile}.yaml"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        settings = {**entries, **((entries.get("notebooks") or {}).get(name) or {})}
    except (OSError, yaml.YAMLError, AttributeError, TypeError):
        return None, None
    return settings.get("seeds"), settings.get("data_seed")


def write_status(layout: Layout) -> None:
    """Write the table that `book/status.md` includes."""
    rows = [_row(path.stem, _record(layout, path.stem)) for path in sorted(layout.run.glob("*.ipynb"))]
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    write_atomically(layout.status, "\n".join([*lines, *rows]) + "\n")


def _record(layout: Layout, name: str) -> dict[str, Any]:
    try:
        found = json.loads((layout.run / f"{name}.key.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _row(name: str, record: dict[str, Any]) -> str:
    made = record.get("made") or {}
    seeds = None if made.get("seeds") is None else f"{made['seeds']}, data {made.get('data_seed')}"
    threads = f", {made['threads']} threads" if made.get("threads") else ""
    versions = ", ".join(f"{package} {number}" for package, number in (made.get("versions") or {}).items())
    cells = (
        name,
        made.get("profile"),
        seeds,
        clock(record["seconds"]) if "seconds" in record else None,
        made.get("finished"),
        made.get("commit"),
        made["machine"] + threads if "machine" in made else None,
        versions,
    )
    return f"| {' | '.join(plain(cell) if cell else '–' for cell in cells)} |"
