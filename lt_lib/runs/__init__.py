"""The run store: trained runs by content hash, computed once, resumable, never half written.

Names are loaded when they are first asked for: `python -m lt_lib.runs list` needs no PyTorch, whose import
takes longer than the list.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lt_lib.runs._format import FORMAT
    from lt_lib.runs.cluster import ClusterError
    from lt_lib.runs.config import RunConfig
    from lt_lib.runs.evidence import publish_runs, read_runs
    from lt_lib.runs.files import StoreError
    from lt_lib.runs.fingerprint import fingerprint
    from lt_lib.runs.from_profile import config_from_profile
    from lt_lib.runs.many import RunsFailed, run_many
    from lt_lib.runs.publish import build_folder, publish, save_figure_data
    from lt_lib.runs.results import Run
    from lt_lib.runs.single import run
    from lt_lib.runs.store import Store
    from lt_lib.runs.sweep import sweep
    from lt_lib.runs.together import run_together

__all__ = [
    "FORMAT",
    "ClusterError",
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
    "run_together",
    "save_figure_data",
    "sweep",
]

# module -> public names that it defines; the same as above, for the interpreter
_DEFINED = {
    "_format": ("FORMAT",),
    "cluster": ("ClusterError",),
    "config": ("RunConfig",),
    "evidence": ("publish_runs", "read_runs"),
    "files": ("StoreError",),
    "fingerprint": ("fingerprint",),
    "from_profile": ("config_from_profile",),
    "many": ("RunsFailed", "run_many"),
    "publish": ("build_folder", "publish", "save_figure_data"),
    "results": ("Run",),
    "single": ("run",),
    "store": ("Store",),
    "sweep": ("sweep",),
    "together": ("run_together",),
}
_HOME = {name: module for module, names in _DEFINED.items() for name in names}


class _Package(ModuleType):
    """Loads a public name at first use, and keeps it where a module of the same name is imported."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):  # the import of `runs.publish` sets it
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
