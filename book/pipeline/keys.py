"""Content keys: what a notebook or the rendered book was made from, so that only stale parts run again."""

import ast
import hashlib
import json
import platform
import re
import runpy
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import yaml

from lt_lib._home import places
from pipeline.layout import ROOT, Layout
from pipeline.settings import settings_read

PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;#]+)", re.MULTILINE)


def pins(text: str) -> dict[str, str]:
    """Names and versions in the text of a requirements file; comments and blank lines are skipped."""
    return {match["name"]: match["version"] for match in PIN.finditer(text)}


def installed_versions(root: Path = ROOT) -> dict[str, str]:
    """Versions of Python and of every pinned distribution as installed; "" where one is missing."""
    found = {"python": platform.python_version()}
    for name in pins((root / "requirements.txt").read_text(encoding="utf-8")):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def imported_names(sources: Iterable[str]) -> set[str]:
    """Dotted names that Python sources import: `from a import b` counts as `a` and `a.b`."""
    names: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def library_modules(names: Iterable[str], root: Path = ROOT) -> list[str]:
    """Those of the dotted names that are modules or packages of lt_lib, sorted."""
    return sorted(name for name in names if name.split(".")[0] == "lt_lib" and _is_module(name, root))


def _is_module(name: str, root: Path) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def book_modules(names: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Drawing helpers of book/ that are imported, sorted."""
    files = {root / "book" / f"{name.split('.')[0]}.py" for name in names}
    return sorted(path for path in files if path.is_file())


def committed_results(code: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Tables below book/results, sorted, if a source names that folder as "results"; else none."""
    if not any('"results"' in source for source in code):
        return []
    return sorted((root / "book" / "results").rglob("*.csv"))


@cache
def _fingerprint_function() -> Callable[[Iterable[str]], str]:
    """`lt_lib.runs.fingerprint`, read from its file: importing the package imports torch (seconds)."""
    return runpy.run_path(str(ROOT / "lt_lib" / "runs" / "fingerprint.py"))["fingerprint"]


def digest(*parts: bytes | str) -> str:
    """SHA-256 of the parts; their lengths are hashed too, so that no two lists of parts collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()


def files_digest(files: Sequence[Path], base: Path) -> str:
    """SHA-256 over names (relative to `base`) and bytes of files."""
    parts = [part for path in files for part in (path.relative_to(base).as_posix(), path.read_bytes())]
    return digest(*parts)


def data_digest(profile: Path, notebook: str, root: Path) -> str:
    """SHA-256 of the file that a profile names as a notebook's data by `npz:FILE` or `csv:FILE`, or "".

    Of a list, `csv:FILE`, its images are not read. Of a folder, `folder:DIR`, names, sizes and times of the
    files are taken instead of their bytes.
    A relative path is taken from `root`, where the kernels find it: their own folders are empty. Files of
    Fashion-MNIST never change and are not read. What is wrong with a profile is left to the library to say.
    """
    try:
        entries = yaml.safe_load(profile.read_text(encoding="utf-8"))
        settings = {**entries, **((entries.get("notebooks") or {}).get(notebook) or {})}
    except (yaml.YAMLError, AttributeError, TypeError):
        return ""
    data, folder = settings.get("data"), settings.get("root")
    kind, _, own = data.partition(":") if isinstance(data, str) else ("", "", "")
    if kind not in ("npz", "folder", "csv"):
        return ""
    path = places(own, folder if isinstance(folder, str) else None, [root])[0]
    if kind == "folder":
        return _folder_digest(path)
    if not path.is_file():
        return "absent"
    status = path.stat()
    return _file_digest(path, status.st_size, status.st_mtime_ns)


def _folder_digest(folder: Path) -> str:
    """SHA-256 of names, sizes and times of the files in a folder."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            parts.append(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}")
    return digest(*parts) if parts else "absent"


@cache
def _file_digest(path: Path, size: int, changed: int) -> str:
    """SHA-256 of a file, read once for all notebooks; `size` and `changed` tell an edited one apart."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def notebook_key(text: Path, code: Sequence[str], layout: Layout, versions: dict[str, str]) -> str:
    """Key of an executed notebook: text, settings, data, results and code that it reads, versions installed.

    Args:
        text: the text notebook.
        code: sources of its code cells.
        layout: the build; gives the profile.
        versions: what `installed_versions` returned.
    """
    names = imported_names(code)
    modules = library_modules(names)
    profile = layout.notebooks / "profiles" / f"{layout.profile}.yaml"
    helpers = book_modules(names)
    sources = [*code, *(path.read_text(encoding="utf-8") for path in helpers)]
    return digest(
        text.read_bytes(),
        settings_read(profile, text.stem, sources, [page.stem for page in layout.texts()]),
        data_digest(profile, text.stem, layout.root),
        _fingerprint_function()(modules) if modules else "",
        files_digest(helpers, ROOT),
        files_digest(committed_results(code), ROOT),
        json.dumps(versions, sort_keys=True),
    )
