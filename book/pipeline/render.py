"""Render the staged tree by Jupyter Book's Sphinx set-up, failing on any warning."""

import io
import json
import os
import re
import shutil
import time
import warnings
from pathlib import Path

from pipeline.convert import write_atomically
from pipeline.layout import BuildError, Layout
from pipeline.offline import remote_loads

UNUSED_EXTENSIONS = {"sphinx_thebe", "sphinx_comments"}  # both load programs from other hosts
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def render(layout: Layout, key: str, force: bool = False) -> bool:
    """Render the book if its key has changed; returns whether that was needed.

    The book is built from nothing in a folder beside the old one and takes its place only when it is whole:
    an incremental build would not repeat the warnings of pages that it does not read again.

    Raises:
        BuildError: Sphinx warned or failed, or a page loads something remote.
    """
    record = layout.build / "html.key.json"
    if not force and (layout.html / "index.html").is_file() and _recorded(record) == key:
        return False
    partial = layout.build / "html.part"
    for folder in (partial, layout.build / "doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    problems = _sphinx(layout, partial)
    if problems:
        raise BuildError(f"The book does not render without warnings:\n{problems}")
    if loads := remote_loads(partial):
        raise BuildError("Pages must load nothing remote, but:\n" + "\n".join(f"  {line}" for line in loads))
    _replace(partial, layout.html)
    seconds = time.monotonic() - started
    write_atomically(record, json.dumps({"key": key, "seconds": round(seconds, 2)}) + "\n")
    print(f"Rendered in {seconds:.0f} s", flush=True)
    return True


def _recorded(record: Path) -> str:
    try:
        return json.loads(record.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError):
        return ""


def _replace(new: Path, target: Path) -> None:
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(new, target)
    shutil.rmtree(old, ignore_errors=True)


def _sphinx(layout: Layout, output: Path) -> str:
    """Run Sphinx; returns its warnings and errors, "" when there are none."""
    # imported here because they take a second, which an unchanged book need not spend
    from jupyter_book.config import get_final_config
    from jupyter_book.sphinx import REDIRECT_TEXT
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    # without `sourcedir`, which would put every .js file of a static folder, all of MathJax, into each page
    config, _ = get_final_config(
        user_yaml=layout.staged / "_config.yml",
        cli_config={"latex_individualpages": False},
        raise_on_invalid=True,
    )
    config["extensions"] = [name for name in config["extensions"] if name not in UNUSED_EXTENSIONS]
    config.pop("comments_config", None)
    messages = io.StringIO()
    try:
        with patch_docutils(None), docutils_namespace(), warnings.catch_warnings():
            # an extension looks at every object in memory, torch's deprecated ones among them
            warnings.filterwarnings("ignore", category=FutureWarning, module="sphinx_external_toc")
            app = Sphinx(
                srcdir=layout.staged,
                confdir=None,
                outdir=output,
                doctreedir=layout.build / "doctrees",
                buildername="html",
                confoverrides=config,
                status=None,
                warning=messages,
                freshenv=True,
                warningiserror=True,
                keep_going=True,
            )
            app.build(force_all=True)
            root = app.config.root_doc
            failed = app.statuscode != 0
    except Exception as error:
        return COLOUR.sub("", messages.getvalue()) + f"{type(error).__name__}: {error}"
    text = COLOUR.sub("", messages.getvalue()).strip()
    if not (output / "index.html").is_file():
        write_atomically(output / "index.html", REDIRECT_TEXT.format(first_page=f"{root}.html"))
    return text or ("Sphinx failed without a message." if failed else "")
