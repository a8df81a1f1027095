"""What no code here may do: unpickle what it did not write, run a shell, listen beyond this machine."""

import ast
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest
from jupyter_client import KernelManager

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("lt_lib", "book", "benchmarks", "examples")
UNPICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
# a restricted unpickler of official files, after their checksum; a safe loader of a subclass
EXCEPTIONS = {"lt_lib/data/cifar.py": "unpickles", "lt_lib/_yaml.py": "yaml.load without a safe loader"}


def sources() -> Iterator[tuple[str, str]]:
    """Every module, and the code of every notebook: its name and its source."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.md")):
        cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
        yield path.relative_to(ROOT).as_posix(), "\n\n".join(cells)


def faults(source: str) -> Iterator[str]:
    """What is forbidden in a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in UNPICKLING:
            yield "unpickles"
        elif isinstance(node, ast.Attribute) and node.attr in ("load", "loads", "Unpickler", "open"):
            if ast.unparse(node.value) in UNPICKLING:
                yield "unpickles"
        elif isinstance(node, ast.Call):
            yield from _of_call(ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords})
        elif isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::", "tcp://0.0.0.0"):
            yield "listens to everybody"


def _of_call(name: str, options: dict[str | None, str]) -> Iterator[str]:
    if name == "torch.load" and options.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
        yield "np.load without allow_pickle=False"
    if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
        yield "yaml.load without a safe loader"
    if name in ("eval", "exec", "os.system", "os.popen") or options.get("shell") == "True":
        yield "runs text as a program"
    if name.endswith(".extractall") and options.get("filter") not in ("'data'", '"data"'):
        yield "unpacks an archive that may leave its folder"
    if (name.endswith(".bind") and "sock" in name) or name.endswith(("HTTPServer", "TCPServer")):
        yield "listens"


def test_no_code_unpickles_runs_text_or_listens() -> None:
    found = {(name, fault) for name, source in sources() for fault in faults(source)}
    assert found == set(EXCEPTIONS.items())


@pytest.mark.parametrize(
    "source",
    [
        "class Own(pickle.Unpickler): ...",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "yaml.load(text, Loader=yaml.Loader)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "archive.extractall(folder)",
        "sock.bind(('', 80))",
        "Client('0.0.0.0')\nhost = '0.0.0.0'",
        "http.server.HTTPServer(('', 0), Handler)",
    ],
)
def test_each_rule_finds_its_fault(source: str) -> None:
    assert list(faults(source))


@pytest.mark.parametrize("source", ["yaml.safe_load(text)", "model.eval()", "signature.bind(1)", "x = ':'"])
def test_no_rule_finds_what_is_harmless(source: str) -> None:
    assert not list(faults(source))


def test_kernels_of_the_book_listen_on_this_machine_alone() -> None:
    assert ipaddress.ip_address(KernelManager().ip).is_loopback
