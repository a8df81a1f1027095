"""One whole iteration of surgery in units of gradients and evaluation sweeps of the same network.

    OMP_NUM_THREADS=1 python -m benchmarks.iteration [--quick] [--net resnet20] [--images 5000]

An iteration is nine certified eigenpairs (tol 1e-3) on 256 training images, the sensitivities of ten classes
on `--images` held-out ones, the coefficients, and the evaluation of the candidate: the first iteration of
`SurgeryConfig.as_written`, from a cold start. A gradient of the Hessian batch and a plain sweep of the
held-out images (the model in eval mode, float32) are timed before and after it in the same process, in CPU
time, and their means are the units. Data and network are those of `benchmarks.sensitivity`. The table goes to
`benchmarks/results/iteration[-resnet20][-quick].md`.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks._eigenpairs_report import RESULTS, machine
from benchmarks.sensitivity import data, sweep, timed, trained
from lt_lib.surgery import Calibration, HessianImages, Operation, SurgeryConfig, operate

GRADIENTS, SWEEPS = 70, 11  # the bar; the aim is 45 and 6


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Take the gradient of the mean loss of a batch as one plainly would."""
    torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))


def units(net: nn.Module, batch: tuple[Tensor, Tensor], held: Tensor) -> tuple[float, float]:
    """Return the CPU seconds of one gradient, the better of two, and of one sweep, at the better batch."""
    one = min(timed(gradient, net, *batch)[1] for _ in range(2))
    size = min((64, 250), key=lambda s: timed(sweep, net, held[:500], s)[1])
    return one, timed(sweep, net, held, size)[1]


def report(done: Operation, cost: float, unit: tuple[float, float], options: argparse.Namespace) -> str:
    """Return the table in Markdown."""
    only = done.trace[0]
    allowed = GRADIENTS * unit[0] + SWEEPS * unit[1]
    return "\n".join(
        [
            f"# One iteration of surgery: {'a small network' if options.quick else options.net}",
            "",
            f"256 Hessian images, {options.images} held-out images, {len(only.values)} pairs, largest "
            f"residual {float(only.residuals.max()):.1e}. CPU time. Machine: {machine()}.",
            "",
            "| what | measured |",
            "| --- | ---: |",
            f"| one gradient of the Hessian batch, s | {unit[0]:.2f} |",
            f"| one sweep of the held-out images, s | {unit[1]:.2f} |",
            f"| Hessian products | {only.products} |",
            f"| sweeps that were evaluated | {only.passes:.1f} |",
            f"| the iteration, s | {cost:.1f} |",
            f"| {GRADIENTS} gradients and {SWEEPS} sweeps, s | {allowed:.1f} |",
            f"| the iteration over that (at most 1) | {cost / allowed:.2f} |",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> float:
    """Run the benchmark, write its table, and return the iteration's time over what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits and a small network")
    parser.add_argument("--net", choices=("resnet20", "resnet50"), default="resnet50")
    parser.add_argument("--images", type=int, help="held out; 5,000 (800)")
    parser.add_argument("--epochs", type=int, help="of training; 6 (30)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the table")
    options = parser.parse_args(arguments)
    options.images = options.images or (800 if options.quick else 5000)
    options.epochs = options.epochs or (30 if options.quick else 6)
    train, held = data(options.quick, options.images)
    net = trained(options.net, options.quick, *train, options.epochs)
    batch = (train[0][:256], train[1][:256])
    before = units(net, batch, held[0])
    start = time.process_time()
    config = SurgeryConfig.as_written(10, 1)
    done = operate(net, HessianImages(*batch), Calibration(*held, 10), config)
    cost = time.process_time() - start
    after = units(net, batch, held[0])
    unit = ((before[0] + after[0]) / 2, (before[1] + after[1]) / 2)
    text = report(done, cost, unit, options)
    options.results.mkdir(exist_ok=True)
    name = f"iteration{'-resnet20' * (options.net == 'resnet20')}{'-quick' * options.quick}.md"
    (options.results / name).write_text(text, encoding="utf-8")
    print(text)
    return cost / (GRADIENTS * unit[0] + SWEEPS * unit[1])


if __name__ == "__main__":
    main()
