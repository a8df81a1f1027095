"""99 certified Hessian eigenpairs of a ResNet-50 (23.5 M parameters) on 100 classes, within a memory cap.

    OMP_NUM_THREADS=2 python -m benchmarks.many_spikes [--quick] [--data fashion_pairs] [--memory 8]

Pairs of digits (or garments) side by side, enlarged to 32 pixels and three channels, make 100 classes; the
network is trained until it fits 2,048 of them. Then the largest eigenvalues of its Hessian on 256 further
ones are found with the basis in bfloat16, restarted within `--memory` GiB, and each pair is certified by a
product in float32. One vector has 94 MB: 99 of them in float32, as they are returned, have 9.3 GB.

A run that was killed goes on from its last saved state when it is started again with the same arguments; the
state is written every `--save` products from where it lies, not copied. `--quick` does all of it on a small
network in seconds. Peak memory is the largest resident size of any of the processes that took part. Values,
residuals and memory go to `benchmarks/results/many-spikes[-quick].md`.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from benchmarks._eigenpairs import peak_memory
from benchmarks._eigenpairs_report import RESULTS, machine
from lt_lib.curvature import Eigenpairs, HessianOperator, Progress, lanczos
from lt_lib.data import load, normalisation, split
from lt_lib.nets import resnet, torchvision_resnet

GIB = 2**30
TRAINED = 2048  # images; those of the Hessian come after them
SAME = (
    "quick",
    "data",
    "images",
    "pairs",
    "tol",
    "epochs",
    "memory",
    "float32",
)  # what a resumed run must share


def pictures(name: str, size: int) -> tuple[Tensor, Tensor]:
    """Return composed pairs, normalised, enlarged, with a little noise (`benchmarks._eigenpairs.digits`)."""
    part = split(load(name), test=0.1, seed=0).train
    mean, std = normalisation(part)
    pixels = (part.in_memory().float() / 255 - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))[:8192]
    large = interpolate(pixels[order], size=(size, size), mode="bilinear")
    noise = torch.randn(large.shape, generator=torch.Generator().manual_seed(1))
    return (large + 0.1 * noise).expand(-1, 3, -1, -1).contiguous(), part.labels[order]


def network(quick: bool) -> nn.Module:
    """Return the network, untrained."""
    return resnet(8, 4, 100) if quick else torchvision_resnet("resnet50", 100)


def trained(net: nn.Module, x: Tensor, y: Tensor, epochs: int, file: Path) -> nn.Module:
    """Return the network in eval mode, trained and kept in `file`, or read from it."""
    if file.exists():
        net.load_state_dict(torch.load(file, weights_only=True))
        return net.eval()
    rounds = list(zip(x[:TRAINED].split(64), y[:TRAINED].split(64), strict=True))
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=epochs * len(rounds))
    net.train()
    for epoch in range(epochs):
        total = 0.0
        for images, labels in rounds:
            optimiser.zero_grad()
            loss = cross_entropy(net(images), labels)
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch}: loss {total / len(rounds):.3f}", flush=True)
    optimiser.zero_grad()
    written(net.state_dict(), file)
    return net.eval()


class Saved(Mapping[str, Tensor]):
    """A saved state of which one tensor at a time is in memory, and none once it is taken up."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.names = tuple(self._opened())

    def __getitem__(self, name: str) -> Tensor:
        return self._opened()[name].clone()  # the mapping of the file ends here

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def _opened(self) -> dict[str, Tensor]:
        return torch.load(self.file, mmap=True, weights_only=True)


def written(value: Any, file: Path) -> None:
    """Write atomically: a kill leaves the earlier file."""
    partial = file.with_suffix(".partial")
    torch.save(value, partial)
    os.replace(partial, file)


class Log:
    """Says where a run stands, saves its state, and remembers peak memory and time over all processes."""

    def __init__(self, folder: Path, tol: float, every: int, stop: int | None) -> None:
        self.folder, self.tol, self.every, self.stop = folder, tol, every, stop
        self.begin, self.finished = time.perf_counter(), False
        file = folder / "log.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        self.peak, self.seconds = before.get("peak", 0), before.get("seconds", 0.0)

    def totals(self) -> tuple[int, float]:
        """Return peak bytes and seconds, this process included."""
        return max(self.peak, peak_memory()), self.seconds + time.perf_counter() - self.begin

    def __call__(self, progress: Progress) -> None:
        """Log one product, and save now and then."""
        done = int((progress.residuals <= self.tol).sum())
        first = not self.finished and done == len(progress.residuals) < progress.products
        self.finished |= first
        if progress.products % self.every == 0 or first:
            peak, seconds = self.totals()
            print(
                f"{progress.products} products, {done} pairs, {seconds / 60:.1f} min, "
                f"peak {peak / GIB:.2f} GiB",
                flush=True,
            )
            written(progress.state(copy=False), self.folder / "state.pt")
            (self.folder / "log.json").write_text(json.dumps({"peak": peak, "seconds": seconds}))
        if self.stop is not None and progress.products >= self.stop:
            raise SystemExit(f"Stopped after {progress.products} products, as asked.")


def spikes(operator: HessianOperator, options: argparse.Namespace, log: Log) -> Eigenpairs:
    """Return the certified pairs, going on from a saved state if there is one."""
    file = options.folder / "state.pt"
    if file.exists():
        print("going on from a saved state", flush=True)
    return lanczos(
        operator,
        options.pairs,
        options.tol,
        max_memory=int(options.memory * GIB),
        basis_dtype=None if options.float32 else torch.bfloat16,
        basis_device="cpu",
        callback=log,
        resume=Saved(file) if file.exists() else None,
    )


def report(pairs: Eigenpairs, operator: HessianOperator, options: argparse.Namespace, log: Log) -> str:
    """Return the certificates in Markdown."""
    peak, seconds = log.totals()
    lines = [
        f"# {options.pairs} eigenpairs of {'a small network' if options.quick else 'ResNet-50'}",
        "",
        f"{operator.size:,} parameters, {options.images} images of {options.data}, 100 classes, "
        f"tol {options.tol:g}, "
        f"basis in {'float32' if options.float32 else 'bfloat16'} within {options.memory:g} GiB, products by "
        f"`{operator.method}`. Machine: {machine()}.",
        "",
        f"- certified: {int(pairs.converged.sum())} of {options.pairs}, residuals from "
        f"{'products with the vectors' if pairs.verified else 'the recurrence'}, largest "
        f"{float(pairs.residuals.max()):.1e}",
        f"- products: {pairs.matvecs}; time: {seconds / 60:.1f} minutes",
        f"- peak memory: {peak / GIB:.2f} GiB",
        "",
        "| pair | value | residual | angle bound, degrees |",
        "| ---: | ---: | ---: | ---: |",
    ]
    angles = pairs.angles.rad2deg().tolist()
    rows = zip(pairs.values.tolist(), pairs.residuals.tolist(), angles, strict=True)
    return "\n".join(
        [*lines, *(f"| {i} | {v:.5g} | {r:.1e} | {a:.2g} |" for i, (v, r, a) in enumerate(rows, 1)), ""]
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network, 12 pairs, 64 images")
    parser.add_argument("--data", choices=("digit_pairs", "fashion_pairs"), default="digit_pairs")
    parser.add_argument("--images", type=int, help="of the Hessian; 256 (64)")
    parser.add_argument("--pairs", type=int, help="99 (12)")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=10, help="of training")
    parser.add_argument("--memory", type=float, help="GiB that the basis may take; 8")
    parser.add_argument("--float32", action="store_true", help="keep the basis in float32")
    parser.add_argument("--save", type=int, default=25, help="products between two saved states")
    parser.add_argument("--folder", type=Path, help="of states; build/benchmarks/many-spikes[-quick]")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the report")
    parser.add_argument("--stop", type=int, help="give up after so many products, to try out resuming")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.images = options.images or (64 if quick else 256)
    options.pairs = options.pairs or (12 if quick else 99)
    options.memory = options.memory or (0.0004 if quick else 8.0)
    options.folder = options.folder or Path(f"build/benchmarks/many-spikes{'-quick' * quick}")
    return options


def check_same(options: argparse.Namespace) -> None:
    """Write down the arguments, or compare them with those of the run to be resumed.

    Raises:
        SystemExit: they differ.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    file, now = options.folder / "arguments.json", {name: getattr(options, name) for name in SAME}
    if file.exists() and json.loads(file.read_text()) != now:
        raise SystemExit(
            f"{options.folder} holds a run with other arguments ({file.read_text()}). Repeat those, choose "
            "another --folder, or delete it."
        )
    file.write_text(json.dumps(now))


def main(arguments: Sequence[str] | None = None) -> Eigenpairs:
    options = parsed(arguments)
    check_same(options)
    x, y = pictures(options.data, 16 if options.quick else 32)
    net = trained(network(options.quick), x, y, options.epochs, options.folder / "net.pt")
    chosen = slice(TRAINED, TRAINED + options.images)
    x, y = x[chosen].clone(), y[chosen].clone()
    operator = HessianOperator(net, x, y)
    log = Log(options.folder, options.tol, options.save, options.stop)
    pairs = spikes(operator, options, log)
    text = report(pairs, operator, options, log)
    options.results.mkdir(exist_ok=True)
    (options.results / f"many-spikes{'-quick' * options.quick}.md").write_text(text, encoding="utf-8")
    print(text)
    return pairs


if __name__ == "__main__":
    main()
