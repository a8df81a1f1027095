"""The machine in words; needs no PyTorch."""

import os
import platform
from functools import cache
from pathlib import Path


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
