"""The run store: trained runs by content hash, computed once, resumable, never half written."""

from lt_lib.runs.config import FORMAT, RunConfig
from lt_lib.runs.evidence import publish_runs, read_runs
from lt_lib.runs.files import StoreError
from lt_lib.runs.fingerprint import fingerprint
from lt_lib.runs.from_profile import config_from_profile
from lt_lib.runs.many import RunsFailed, run_many
from lt_lib.runs.publish import build_folder, publish, save_figure_data
from lt_lib.runs.results import Run
from lt_lib.runs.single import run
from lt_lib.runs.store import Store

__all__ = [
    "FORMAT",
    "Run",
    "RunConfig",
    "RunsFailed",
    "Store",
    "StoreError",
    "build_folder",
    "config_from_profile",
    "fingerprint",
    "publish",
    "publish_runs",
    "read_runs",
    "run",
    "run_many",
    "save_figure_data",
]
