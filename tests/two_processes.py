"""Starts a script in two local processes that meet through a file, bound to the loopback interface."""

import os
import subprocess
import sys
from pathlib import Path


def run_two(script: Path, folder: Path) -> None:
    """Run `script FOLDER` in both, as torchrun would start them; show what a failing one said."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", str(script), str(folder)],
            env={
                **os.environ,
                **shared,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
