"""Create .venv from the pins, once; does nothing while the pins and the interpreter are unchanged.

Runs under any Python 3 without other packages, so that an old one can say what is needed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed.txt"
OLDEST, NEWEST = (3, 11), (3, 13)


def python_of(venv):
    """Path of the interpreter inside a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def wanted():
    """Text that identifies a complete installation."""
    total = hashlib.sha256()
    for name in ("requirements.txt", "pyproject.toml"):
        total.update((ROOT / name).read_bytes())
    return f"{total.hexdigest()} {VENV}\n"


def interpreter():
    """A supported Python: this one, else the newest on the path; None without one."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    names = [f"python{OLDEST[0]}.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    return next((found for found in map(shutil.which, names) if found), None)


def main():
    """Install if needed; returns the exit status."""
    if STAMP.is_file() and python_of(VENV).exists() and STAMP.read_text() == wanted():
        return 0
    python = interpreter()
    if python is None:
        print(
            "Python {}.{} was found, but this project needs 3.11, 3.12 or 3.13: install one of them, "
            "or name it by `make env PYTHON=/path/to/python3.12`.".format(*sys.version_info[:2]),
            file=sys.stderr,
        )
        return 1
    print(f"Installing the pinned packages into {VENV} (once; some minutes).")
    sys.stdout.flush()
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    pip = [str(python_of(VENV)), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    commands = [
        [python, "-m", "venv", str(VENV)],
        pip + quiet + ["-r", str(ROOT / "requirements.txt")],
        pip + quiet + ["--no-deps", "-e", str(ROOT)],
    ]
    for command in commands:
        status = subprocess.call(command, stdin=subprocess.DEVNULL, cwd=str(ROOT))
        if status:
            print("`{}` failed; mend that and repeat the command.".format(" ".join(command)), file=sys.stderr)
            return 1
    STAMP.write_text(wanted())
    return 0


if __name__ == "__main__":
    sys.exit(main())
