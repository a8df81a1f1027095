"""The machine and the commit in words; needs no PyTorch."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

from lt_lib._home import project_root


@cache
def machine() -> str:
    """Return processor, number of cores and system, such as "AMD EPYC 7763, 2 cores, Linux x86_64".

    Names no host and no user.
    """
    cores = os.cpu_count() or 1
    known = _processor()
    return f"{known}{', ' if known else ''}{cores} cores, {platform.system()} {platform.machine()}".strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def project_commit() -> str:
    """Return the project's commit, 12 digits, with "+" where tracked files differ; "" without one."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(project_root()), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
