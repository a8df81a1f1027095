"""A fingerprint of the code that a run depends on: it follows imports and ignores docstrings and comments."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = "lt_lib"


def fingerprint(module_names: Iterable[str], root: Path | None = None) -> str:
    """Return the SHA-256 (hex) of the code of `module_names` and of every `lt_lib` module that they import.

    Compared as syntax trees without docstrings, so comments, layout and docstrings do not count.
    Imports inside functions count. The `__init__` of a parent package counts only where it is imported
    from itself.

    Args:
        module_names: such as "lt_lib.runs.experiment".
        root: the folder that holds the package; by default that of the running code.

    Raises:
        ValueError: there is no such module.
    """
    base = Path(__file__).resolve().parents[2] if root is None else Path(root)
    trees = _closure(tuple(module_names), base)
    digest = hashlib.sha256()
    for name in sorted(trees):
        digest.update(f"{name}\n{ast.dump(_without_docstrings(trees[name]))}\n".encode())
    return digest.hexdigest()


@cache
def code_fingerprint(module_name: str) -> str:
    """Return `fingerprint` of one module, once a process: the code that is loaded does not change."""
    return fingerprint([module_name])


def imported_modules(module_names: Iterable[str], root: Path | None = None) -> list[str]:
    """Return, sorted, the modules that `fingerprint` covers."""
    base = Path(__file__).resolve().parents[2] if root is None else Path(root)
    return sorted(_closure(tuple(module_names), base))


def _closure(names: tuple[str, ...], base: Path) -> dict[str, ast.Module]:
    trees: dict[str, ast.Module] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in trees:
            continue
        path = _find(name, base)
        if path is None:
            raise ValueError(
                f"There is no module `{name}` under {base}; name one such as `{PACKAGE}.training.loop`."
            )
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting += [module for module in _imports(trees[name], package) if _find(module, base) is not None]
    return trees


def _find(name: str, base: Path) -> Path | None:
    if name != PACKAGE and not name.startswith(PACKAGE + "."):
        return None
    stem = base.joinpath(*name.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree
