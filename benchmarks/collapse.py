"""Neural-collapse metrics for 8,142 classes x 2,048 features: one pass, memory O(C d + d^2), no C x C object.

    OMP_NUM_THREADS=1 python -m benchmarks.collapse

The meter is compared with the definitions as they are usually coded: a pass for the class means, a pass for
the scatter around them, then C x C matrices for NC2 and the angles. Both run in float64 on the same stream of
float32 batches, each in a process of its own, so that peak resident memory is its own. Times leave out making
the batches, but with a network in front each pass costs its forward passes once more.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lt_lib.collapse import CollapseMeter


class LargestTensor(TorchDispatchMode):
    """Keeps the size of the largest tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor):
                self.size = max(self.size, part.numel())
        return out


class Stream:
    """Batches of features around random class means, the same on every pass; counts its own time."""

    def __init__(self, classes: int, dim: int, each: int, batch: int = 512) -> None:
        self.classes, self.dim, self.batch, self.seconds = classes, dim, batch, 0.0
        self.means = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
        order = torch.randperm(each * classes, generator=torch.Generator().manual_seed(1))
        self.labels = torch.arange(classes).repeat(each)[order]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(2)
        for labels in self.labels.split(self.batch):
            start = time.process_time()
            features = (
                torch.randn(len(labels), self.dim, generator=generator).mul_(0.1).add_(self.means[labels])
            )
            self.seconds += time.process_time() - start
            yield features, labels


def meter(stream: Stream, weight: Tensor) -> list[float]:
    """One pass."""
    found = CollapseMeter(stream.classes, stream.dim, torch.bincount(stream.labels))
    for features, labels in stream:
        found.update(features, labels)
    result = found.compute(weight)
    return [result.nc1, result.nc2, result.nc3 or 0.0, result.equiangularity]


def definitions(stream: Stream, weight: Tensor) -> list[float]:
    """Two passes, then C x C matrices."""
    classes, counts = stream.classes, torch.bincount(stream.labels)
    means = torch.zeros(classes, stream.dim, dtype=torch.float64)
    for features, labels in stream:
        means.index_add_(0, labels, features.double())
    means /= counts[:, None]
    within = torch.zeros(stream.dim, stream.dim, dtype=torch.float64)
    for features, labels in stream:
        rows = (features.double() - means[labels]) / counts[labels].double().sqrt()[:, None]
        within.addmm_(rows.T, rows)
    m = means - means.mean(0)
    nc1 = torch.trace(within / classes @ torch.linalg.pinv(m.T @ m, hermitian=True))
    gram = m @ m.T
    target = (torch.eye(classes, dtype=torch.float64) - 1 / classes) / math.sqrt(classes - 1)
    nc2 = (gram / gram.norm() - target).norm()
    w0 = weight.double() - weight.double().mean(0)
    nc3 = (w0 / w0.norm() - m / m.norm()).norm()
    unit = m / m.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T)[~torch.eye(classes, dtype=torch.bool)]
    return [float(value) for value in (nc1, nc2, nc3, cosines.std(correction=0))]


METHODS = {"meter": meter, "definitions": definitions}


def resident() -> int:
    """Peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure(method: str, classes: int, dim: int, each: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    METHODS[method](Stream(8, 4, 2), torch.ones(8, 4))  # loads what torch loads on first use
    stream = Stream(classes, dim, each)
    weight = torch.randn(classes, dim, generator=torch.Generator().manual_seed(3))
    before, start = resident(), time.process_time()
    with LargestTensor() as seen:
        values = METHODS[method](stream, weight)
    seconds = time.process_time() - start - stream.seconds
    return {"values": values, "seconds": seconds, "bytes": resident() - before, "largest": seen.size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=8142)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--each", type=int, default=3, help="samples a class")
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.classes, options.dim, options.each
    if options.method:
        print(json.dumps(measure(options.method, *sizes)))
        return
    found = {}
    for name in METHODS:
        arguments = [f"--{key}={value}" for key, value in vars(options).items() if key != "method"]
        command = [sys.executable, "-m", "benchmarks.collapse", *arguments, f"--method={name}"]
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    report(found, *sizes)


def report(found: dict[str, dict[str, Any]], classes: int, dim: int, each: int) -> None:
    ours, theirs = found["meter"], found["definitions"]
    unit = classes * dim + dim * dim
    pairs = zip(ours["values"], theirs["values"], strict=True)
    print(f"{classes} classes, {dim} features, {each} samples a class, one thread, float64")
    print(f"{'':34}{'meter':>12}{'definitions':>12}{'ratio':>8}")
    rows = (
        ("passes over the data", 1, 2),
        ("CPU time without the data, s", ours["seconds"], theirs["seconds"]),
        ("peak memory / (C d + d^2) numbers", ours["bytes"] / 8 / unit, theirs["bytes"] / 8 / unit),
        ("largest tensor / (C x C)", ours["largest"] / classes**2, theirs["largest"] / classes**2),
    )
    for name, mine, other in rows:
        print(f"{name:34}{mine:12.3g}{other:12.3g}{mine / other:8.2f}")
    apart = max(abs(a / b - 1) for a, b in pairs)
    print(f"largest relative difference of NC1, NC2, NC3, equiangularity: {apart:.1e}")


if __name__ == "__main__":
    main()
