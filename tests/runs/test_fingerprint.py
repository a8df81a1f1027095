import pytest

from lt_lib.runs.fingerprint import fingerprint, imported_modules

SOURCE = '''"""Docstring."""

from lt_lib.other import g  # comment


def f(x):
    """Double."""
    return 2 * g(x)


class A:
    """Nothing."""

    def m(self):
        from lt_lib.lazy import h
        return h
'''


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "lt_lib"
    (folder / "sub").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "main.py": SOURCE,
        "other.py": "from .sub import g\n",
        "lazy.py": "h = 1\n",
        "unused.py": "u = 1\n",
        "sub/__init__.py": "from .deep import g\n",
        "sub/deep.py": "import numpy as np\n\ng = np.abs\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return tmp_path


def now(package):
    return fingerprint(["lt_lib.main"], package)


def edit(package, name, old, new):
    path = package / "lt_lib" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_it_follows_imports_inside_the_package_alone(package):
    names = ["lt_lib.lazy", "lt_lib.main", "lt_lib.other", "lt_lib.sub", "lt_lib.sub.deep"]
    assert imported_modules(["lt_lib.main"], package) == names


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("main.py", '"""Docstring."""', '"""Another."""'),
        ("main.py", '    """Double."""\n', ""),
        ("main.py", "  # comment", "  # other comment"),
        ("main.py", "2 * g(x)", "(2 *\n        g(x))"),
        ("unused.py", "u = 1", "u = 2"),
    ],
)
def test_docstrings_comments_layout_and_strangers_do_not_count(package, name, old, new):
    before = now(package)
    edit(package, name, old, new)
    assert now(package) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("main.py", "2 * g(x)", "3 * g(x)"),
        ("lazy.py", "h = 1", "h = 2"),
        ("sub/deep.py", "np.abs", "np.sign"),
        ("other.py", "import g", "import g as g"),
        ("main.py", "def f(x)", "def f(x, y=1)"),
    ],
)
def test_code_counts_however_far_away(package, name, old, new):
    before = now(package)
    edit(package, name, old, new)
    assert now(package) != before


def test_a_run_depends_on_what_computes_it_and_not_on_the_store():
    names = imported_modules(["lt_lib.runs.experiment"])
    assert {"lt_lib.training.loop", "lt_lib.losses.registry", "lt_lib.reweighting.module"} <= set(names)
    assert not {"lt_lib.runs.store", "lt_lib.runs.publish", "lt_lib.runs.many", "lt_lib.profiles"} & set(
        names
    )


def test_an_unknown_module_is_refused(package):
    with pytest.raises(ValueError, match=r"no module `lt_lib\.nothing`"):
        fingerprint(["lt_lib.nothing"], package)
