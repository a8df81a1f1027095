"""Sensitivities of nine spikes: each method's time in plain evaluation sweeps, and what it gets wrong.

    OMP_NUM_THREADS=1 python -m benchmarks.sensitivity [--quick] [--net resnet50] [--images 5000]

A network is trained briefly on Fashion-MNIST (long-tailed, 50 to 1; enlarged to 32 pixels and three
channels), its nine leading Hessian eigenpairs are certified on 256 training images, and the sensitivity of
each class of `--images` held-out images to each is measured in every way, one after the other in one
process. A plain sweep (the model in eval mode, float32, in its own memory order, at the better of two batch
sizes) is timed before and after each; the time of 18 of them, the cost of central differences written
plainly, is the unit. CPU time. "Wrong" counts images (over all directions) whose flip differs from full
evaluation, gains and losses of a class cancelling. `--quick` takes digits and a small network. The table
goes to `benchmarks/results/sensitivity[-resnet50][-quick].md`.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from benchmarks._eigenpairs_report import RESULTS, machine
from lt_lib.curvature import HessianOperator, lanczos
from lt_lib.data import Part, exponential_counts, load, long_tail, normalisation, split
from lt_lib.nets import resnet, torchvision_resnet
from lt_lib.surgery import Sensitivity, linear_logits, measure_sensitivity

KEPT = Path("build/benchmarks")
BAR = 0.6  # of 18 plain sweeps; the aim is 0.35
AMPLITUDES = (("length 0.01", 0.01, False), ("length 0.02", 0.02, False), ("0.01 nats", 0.01, True))


def pixels(part: Part, mean: Tensor, std: Tensor, count: int | None, size: int) -> tuple[Tensor, Tensor]:
    """Return images of a part in random order, normalised, enlarged, in three channels."""
    order = torch.randperm(len(part.labels), generator=torch.Generator().manual_seed(0))[:count]
    x = (part.in_memory()[order].float() / 255 - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    large = interpolate(x, size=(size, size), mode="bilinear")
    return large.expand(-1, 3, -1, -1).contiguous(), part.labels[order]


def data(quick: bool, images: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training images, long-tailed, and held-out ones."""
    source = load("digits" if quick else "fashion_mnist")
    parts = split(source, test=0.5, seed=0) if quick else split(source, calibration=500, seed=0)
    held = parts.test if quick else parts.calibration
    counts = exponential_counts(80 if quick else 5000, 10 if quick else 50, 10)
    train = long_tail(parts, counts, seed=0).train
    mean, std = normalisation(train)
    assert held is not None
    size = 16 if quick else 32
    return pixels(train, mean, std, None, size), pixels(held, mean, std, images, size)


def trained(name: str, quick: bool, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """Return the network in eval mode, trained, or read from where it is kept."""
    net: nn.Module = torchvision_resnet("resnet50", 10) if name == "resnet50" else resnet(20, 16, 10)
    net = resnet(8, 8, 10) if quick else net
    file = KEPT / f"sensitivity-{name}{'-quick' * quick}-{epochs}.pt"
    if file.exists():
        net.load_state_dict(torch.load(file, weights_only=True))
        return net.eval()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    # to the end of a schedule, as the networks that surgery repairs
    steps = epochs * math.ceil(len(x) / 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=steps)
    net.train()
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(128):
            optimiser.zero_grad()
            loss = cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch}: loss {float(loss.detach()):.3f}", flush=True)
    optimiser.zero_grad()
    KEPT.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), file)
    return net.eval()


def timed(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, float]:
    """Return what a call returns, and its CPU seconds."""
    start = time.process_time()
    found = call(*args, **options)
    return found, time.process_time() - start


def sweep(net: nn.Module, x: Tensor, batch: int) -> None:
    """Evaluate all images as one plainly would."""
    with torch.no_grad():
        for part in x.split(batch):
            net(part)


def wrong(found: Sensitivity, exact: Sensitivity, counts: Tensor) -> tuple[int, float]:
    """Return the net count of wrong flips, and the largest error of an entry in standard errors."""
    difference = (found.matrix - exact.matrix).abs()
    images = (difference * 2 * exact.eps[:, None] * counts).round().sum()
    one = 1 / (2 * exact.eps[:, None] * counts)  # an entry made by one image: its error is at least its size
    return int(images), float((difference / torch.maximum(exact.errors, one)).max())


def measured(
    net: nn.Module, vectors: Tensor, values: Tensor, held: tuple[Tensor, Tensor], options: Any
) -> list[list[Any]]:
    """Return the rows of the table: each amplitude and method, its time, passes, flips and errors."""
    x, y = held
    counts, rows = torch.bincount(y, minlength=10).double(), []
    batch = min((64, 250), key=lambda size: timed(sweep, net, x[:500], size)[1])
    sweep_before = timed(sweep, net, x, batch)[1]
    for title, eps, energy in AMPLITUDES[: 1 if options.quick else None]:
        exact: Sensitivity | None = None
        for method in ("exact", "screened", "forward")[: 2 if options.skip_forward else None]:
            given = values if energy else None
            found, seconds = timed(measure_sensitivity, net, vectors, x, y, eps, given, method=method)
            sweep_after = timed(sweep, net, x, batch)[1]
            unit = len(vectors) * (sweep_before + sweep_after)  # 2 K sweeps at their mean
            sweep_before, exact = sweep_after, exact or found
            errors = wrong(found, exact, counts)
            flips = int(found.flips.sum())
            rows.append(
                [title, method, seconds / unit, found.passes, flips, *errors, int(found.dropped.sum())]
            )
            print(rows[-1], flush=True)
    if not options.skip_forward:
        _, seconds = timed(linear_logits, net, vectors, x, y)
        unit = 2 * len(vectors) * sweep_before
        rows.append(["any", "linear_logits", seconds / unit, 2 * len(vectors) + 1, "", "", "", ""])
    return rows


def report(rows: list[list[Any]], net: nn.Module, options: Any, accuracy: float) -> str:
    """Return the table in Markdown."""
    size = sum(p.numel() for p in net.parameters())
    lines = [
        f"# Sensitivity of 9 spikes: {'a small network' if options.quick else options.net}",
        "",
        f"{size:,} parameters, {options.images} held-out images, mean class accuracy {accuracy:.3f}. "
        f"Time in units of 18 plain float32 sweeps; `screened` is to stay below {BAR} (aim 0.35). "
        f"Machine: {machine()}.",
        "",
        "| amplitude | method | time | passes | flips | wrong flips (net) | largest error / s.e. | dropped |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, method, cost, passes, flips, *rest in rows:
        shown = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in rest]
        lines.append(f"| {title} | {method} | {cost:.2f} | {passes:.1f} | {flips} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> list[list[Any]]:
    """Run the benchmark and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, a small network, one amplitude")
    parser.add_argument("--net", choices=("resnet20", "resnet50"), default="resnet20")
    parser.add_argument("--images", type=int, help="held out; 5,000 (800)")
    parser.add_argument("--epochs", type=int, help="of training; 6 (30)")
    parser.add_argument("--skip-forward", action="store_true", help="leave out the forward mode")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the table")
    options = parser.parse_args(arguments)
    options.images = options.images or (800 if options.quick else 5000)
    options.epochs = options.epochs or (30 if options.quick else 6)
    train, held = data(options.quick, options.images)
    net = trained(options.net, options.quick, *train, options.epochs)
    images, labels = (t[:256] for t in train)
    pairs = lanczos(HessianOperator(net, images, labels), 9, 1e-3).require_converged()
    rows = measured(net, pairs.vectors, pairs.values, held, options)
    found = measure_sensitivity(net, pairs.vectors[:1], *held, 0.01, method="screened").accuracy
    text = report(rows, net, options, float(found.mean()))
    options.results.mkdir(exist_ok=True)
    name = f"sensitivity{'-resnet50' * (options.net == 'resnet50')}{'-quick' * options.quick}.md"
    (options.results / name).write_text(text, encoding="utf-8")
    print(text)
    return rows


if __name__ == "__main__":
    main()
