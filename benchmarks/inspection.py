"""Inspection and split of 20,000 images of 64 x 64 pixels in 200 classes: wall time and peak memory.

    OMP_NUM_THREADS=1 python -m benchmarks.inspection

The folder is written first (noise smoothed to the size of photographs as JPEG, counts that fall exponentially
to a hundredth), outside what is measured. A second process then does what a reader's first cells do: inspect
the files, load those that are whole, and partition them; its times are those of each step, its peak
resident memory that of the whole process, imports included. Files come from a warm cache of the disk. On a
machine that is busy otherwise, CPU time is what to look at: decoding shares two threads.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lt_lib.data import load
from lt_lib.data.inspection import inspect
from lt_lib.data.partition import partition

SECONDS, BYTES = 60, 2 * 10**9  # what is allowed


def write(folder: Path, images: int, classes: int, side: int) -> None:
    """Counts sum to `images`; a hundredth of the files are copies, one is cut in half."""
    rng = np.random.default_rng(0)
    shares = 100.0 ** (-np.arange(classes) / (classes - 1))
    counts = np.maximum(np.floor(shares / shares.sum() * images), 1).astype(int)
    counts[0] += images - counts.sum()
    for c, count in enumerate(counts.tolist()):
        own = folder / f"class {c}"
        own.mkdir(parents=True)
        for i in range(count):
            if i % 100 == 99:
                (own / f"{i}.jpg").write_bytes((own / f"{i - 1}.jpg").read_bytes())
                continue
            coarse = Image.fromarray(rng.integers(0, 256, (side // 4, side // 4, 3), dtype=np.uint8))
            coarse.resize((side, side), Image.Resampling.BICUBIC).save(own / f"{i}.jpg", quality=90)
    half = folder / "class 0" / "0.jpg"
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])


def measure(folder: Path, side: int, limit: int | None) -> dict[str, Any]:
    marks = [_clocks()]
    found = inspect(f"folder:{folder}", size=side)
    marks.append(_clocks())
    source = load(f"folder:{folder}", size=side, damaged="leave out", memory_limit=limit)
    marks.append(_clocks())
    split = partition(source, test=0.2, calibration=0.1)
    marks.append(_clocks())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": np.diff(marks, axis=0).tolist(),
        "bytes": peak if sys.platform == "darwin" else 1024 * peak,
        "found": [len(found.unusable), len(found.equal), len(found.small_classes)],
        "parts": {name: len(part) for name, part in split.parts().items()},
    }


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument(
        "--on-disk", action="store_true", help="leave images on disk, whatever fits into memory"
    )
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(measure(options.folder, options.side, 0 if options.on_disk else None)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "images"
        write(folder, options.images, options.classes, options.side)
        command = [sys.executable, "-m", "benchmarks.inspection", f"--side={options.side}"]
        command += [f"--folder={folder}", *(["--on-disk"] if options.on_disk else [])]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    report(found, options)


def report(found: dict[str, Any], options: argparse.Namespace) -> None:
    unusable, equal, small = found["found"]
    print(f"{options.images} images of {options.side} x {options.side} in {options.classes} classes")
    steps = dict(zip(("inspect", "load", "partition"), found["seconds"], strict=True))
    steps["all"] = np.sum(found["seconds"], axis=0).tolist()
    print(f"{'':12}{'wall, s':>10}{'CPU, s':>10}")
    for step, (wall, cpu) in steps.items():
        print(f"{step:12}{wall:10.1f}{cpu:10.1f}")
    print(f"allowed {SECONDS} s of wall time: {'met' if steps['all'][0] <= SECONDS else 'missed'}")
    memory = found["bytes"]
    verdict = "met" if memory <= BYTES else "missed"
    print(f"peak memory {memory / 1e9:.2f} GB, allowed {BYTES / 1e9:g} GB: {verdict}")
    print(f"found {unusable} unusable, {equal} groups of copies, {small} classes of fewer than three images")
    print(f"parts: {found['parts']}")


if __name__ == "__main__":
    main()
