"""Where everything lives, and the surroundings in which kernels run."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class BuildError(Exception):
    """A failure that the message alone explains; shown without a traceback."""


@dataclass(frozen=True)
class Layout:
    """Folders of one profile's build.

    Attributes:
        profile: name of a file in notebooks/profiles, without suffix.
        root: folder with notebooks/, book/, _toc.yml and build/ ; tests build small books elsewhere.
    """

    profile: str
    root: Path = ROOT

    @property
    def notebooks(self) -> Path:
        """Text notebooks, NN_name.md."""
        return self.root / "notebooks"

    @property
    def build(self) -> Path:
        """Everything of this profile; safe to delete."""
        return self.root / "build" / self.profile

    @property
    def source(self) -> Path:
        """Converted notebooks, not executed."""
        return self.build / "src"

    @property
    def run(self) -> Path:
        """Executed notebooks, each beside the key of what it was made from."""
        return self.build / "run"

    @property
    def work(self) -> Path:
        """Working folder of the kernels: empty, so that no notebook can lean on files around it."""
        return self.build / "work"

    @property
    def published(self) -> Path:
        """Numbers that the notebooks published, one JSON file for each."""
        return self.build / "published"

    @property
    def figures(self) -> Path:
        """Data behind the figures, a folder of CSV files for each notebook."""
        return self.build / "figures"

    def outputs(self, stem: str) -> list[Path]:
        """What the notebook `stem` left beside its executed copy: published numbers, data of figures."""
        return [*self.published.glob(f"{stem}.json"), *sorted(self.figures.glob(f"{stem}/*"))]

    @property
    def staged(self) -> Path:
        """Source tree of the book as Sphinx sees it."""
        return self.build / "book_src"

    @property
    def status(self) -> Path:
        """The table of the status page."""
        return self.build / "status_table.txt"

    @property
    def html(self) -> Path:
        """The rendered book."""
        return self.build / "html"

    def texts(self) -> list[Path]:
        """The text notebooks in reading order."""
        return sorted(self.notebooks.glob("[0-9][0-9]_*.md"))

    def text(self, stem: str) -> Path:
        """The text notebook called `stem`."""
        return self.notebooks / f"{stem}.md"


def check_profile(layout: Layout) -> None:
    """Have the library check the profile, with what it sets for each page.

    Raises:
        BuildError: the profile is unknown, holds a mistake, or its data are not there.
    """
    from lt_lib import profiles  # imports torch

    try:
        profiles.check_ready(layout.profile)
    except ValueError as error:
        raise BuildError(str(error)) from None


def kernel_environment(layout: Layout, threads: int) -> dict[str, str]:
    """Environment variables under which every kernel of the project runs, in the book and under nbval.

    Fixed thread counts and hash seed make printed numbers repeatable; the IPython folder of our own keeps a
    user's start-up files out; the environment's own `python3` kernel goes before one in the home folder.
    """
    search_path = [str(ROOT / "book"), os.environ.get("PYTHONPATH", "")]
    return {
        "LT_HOME": str(layout.root),
        "LT_PROFILE": layout.profile,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(entry for entry in search_path if entry),
        "PYTHONIOENCODING": "utf-8",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TQDM_DISABLE": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "IPYTHONDIR": str(layout.root / "build" / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),
    }
