"""Eigenpairs largest in magnitude against two public libraries: products, time with set-up, residuals.

    OMP_NUM_THREADS=1 python -m benchmarks.curvature [--net resnet18] [--images 256] [--pairs 9] [--products]

`--products` measures what the table of methods (`lt_lib.curvature.rules`) stands on instead: the set-up and
one product of each method, in gradients of the plain model on the same batch.

Each solver runs in a process of its own on the same network (eval mode), batch and dtype, one thread. Time is
CPU time from the model to the pairs, set-up included, in seconds and in gradients of the plain model on the
same batch, measured in the same process. The residual is the largest ||H q - value q|| / |value| by one
independent product a pair (double backward of PyTorch's own operations). A run above 1e-3 counts as failed.

hessian-eigenthings takes a fixed number of steps: it is shown with its default and with the fewest, in
twos, after which every pair passes (what it took to find out is not counted).
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from lt_lib.curvature import HessianOperator, lanczos
from lt_lib.data import load, normalisation
from lt_lib.nets import resnet

TOL = 1e-3
Pairs = tuple[Tensor, Tensor, int]  # values (k,), vectors (k, P), products


def digits(size: int = 32) -> tuple[Tensor, Tensor]:
    """Return all digits in random order, normalised, enlarged, with a little noise.

    Equal pixels of the background would put thousands of ReLU inputs to one value: where that is zero up to
    rounding, the Hessian depends on the order of a sum, and no two implementations agree to 1e-3.
    """
    part = load("digits").train
    mean, std = normalisation(part)
    pixels = (part.images.float() / 255 - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    large = interpolate(pixels[order], size=size, mode="bilinear")
    noise = torch.randn(large.shape, generator=torch.Generator().manual_seed(1))
    return large + 0.1 * noise, part.labels[order]


def network(name: str, epochs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network trained briefly on 1,024 digits, in eval mode, with all digits."""
    torch.set_num_threads(1)
    x, y = digits()
    if name == "resnet20":
        net: nn.Module = resnet(20, 16, 10, channels=1)
    else:
        from torchvision.models import resnet18

        torch.manual_seed(0)
        net, x = resnet18(num_classes=10), x.expand(-1, 3, -1, -1).contiguous()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
    net.train()
    for _ in range(epochs):
        for first in range(0, 1024, 64):
            optimiser.zero_grad()
            cross_entropy(net(x[first : first + 64]), y[first : first + 64]).backward()
            optimiser.step()
    optimiser.zero_grad()
    return net.eval(), x, y


def ours(net: nn.Module, x: Tensor, y: Tensor, k: int, steps: int) -> Pairs:
    pairs = lanczos(HessianOperator(net, x, y), k, TOL, which="LM")
    return pairs.values, pairs.vectors, pairs.matvecs


def eigenthings(net: nn.Module, x: Tensor, y: Tensor, k: int, steps: int) -> Pairs:
    from hessian_eigenthings.algorithms import lanczos as other_lanczos
    from hessian_eigenthings.loss_fns import supervised_loss
    from hessian_eigenthings.operators import HessianOperator as OtherOperator

    operator = OtherOperator(net, [(x, y)], supervised_loss(nn.CrossEntropyLoss()))
    found = other_lanczos(operator, k=k, max_iter=steps or None, which="LM", reorthogonalize=True, seed=0)
    return found.eigenvalues, found.eigenvectors, found.iterations


def arpack(net: nn.Module, x: Tensor, y: Tensor, k: int, steps: int) -> Pairs:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    parameters = list(net.parameters())
    operator = HessianLinearOperator(
        net, nn.CrossEntropyLoss(), parameters, [(x, y)], check_deterministic=False
    ).to_scipy()
    used = 0

    def product(v: np.ndarray) -> np.ndarray:
        nonlocal used
        used += 1
        return operator @ v.reshape(-1)

    size = operator.shape[0]
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    counted = LinearOperator((size, size), matvec=product, dtype=np.float32)
    values, vectors = eigsh(counted, k=k, which="LM", tol=TOL, v0=start)
    return torch.from_numpy(values), torch.from_numpy(vectors.T), used


SOLVERS: dict[str, Callable[[nn.Module, Tensor, Tensor, int, int], Pairs]] = {
    "lt_lib": ours,
    "hessian-eigenthings": eigenthings,
    "curvlinops + eigsh": arpack,
}


def residual(net: nn.Module, x: Tensor, y: Tensor, values: Tensor, vectors: Tensor) -> float:
    """Return the largest relative residual by products of PyTorch's own double backward."""
    parameters = list(net.parameters())
    gradient = torch.autograd.grad(cross_entropy(net(x), y), parameters, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in gradient])
    worst = 0.0
    for value, vector in zip(values.tolist(), vectors, strict=True):
        image = torch.autograd.grad(flat, parameters, vector.to(flat.dtype), retain_graph=True)
        error = torch.cat([part.reshape(-1) for part in image]) - value * vector
        worst = max(worst, float(error.norm()) / abs(value))
    return worst


def gradient_time(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the CPU time of one gradient, the least of five."""
    times = []
    for _ in range(5):
        begin = time.process_time()
        torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
        times.append(time.process_time() - begin)
    return min(times)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one solver in this process."""
    net, x, y = network(options.net, 0)
    net.load_state_dict(torch.load(options.weights))
    x, y = x[: options.images], y[: options.images]
    warnings.simplefilter("ignore")
    solver = SOLVERS[options.solver]
    one = x[:2], y[:2]
    solver(net, *one, 2, 8)  # loads what is loaded on first use
    gradient, before = gradient_time(net, x, y), _resident()
    begin = time.process_time()
    values, vectors, products = solver(net, x, y, options.pairs, options.steps)
    seconds, peak = time.process_time() - begin, _resident() - before
    worst = residual(net, x, y, values, vectors)
    return {
        "products": products,
        "seconds": seconds,
        "gradients": seconds / gradient,
        "residual": worst,
        "megabytes": peak / 2**20,
        "values": sorted(values.tolist(), reverse=True),
    }


def _resident() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def run(options: argparse.Namespace, solver: str, steps: int = 0) -> dict[str, Any] | None:
    """Run one solver in a fresh process; None if it could not."""
    arguments = [f"--{name}={getattr(options, name)}" for name in ("net", "images", "pairs", "weights")]
    command = [
        sys.executable,
        "-m",
        "benchmarks.curvature",
        *arguments,
        f"--solver={solver}",
        f"--steps={steps}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{solver}: {done.stderr.strip().splitlines()[-1]}")
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"  {solver} {steps or ''}: {found['gradients']:.0f} gradients, {found['residual']:.1e}", flush=True
    )
    return found


def fewest(options: argparse.Namespace) -> tuple[int, dict[str, Any]] | None:
    """Return the fewest steps, in twos, after which hessian-eigenthings passes, with that run."""
    for steps in range(2 * options.pairs + 2, 6 * options.pairs, 2):
        found = run(options, "hessian-eigenthings", steps)
        if found is None:
            return None
        if found["residual"] <= TOL:
            return steps, found
    return None


def report(rows: list[tuple[str, dict[str, Any]]]) -> None:
    print(f"{'':34}{'products':>9}{'seconds':>9}{'gradients':>10}{'MiB':>7}{'residual':>10}")
    for name, row in rows:
        failed = "" if row["residual"] <= TOL else "  failed"
        print(
            f"{name:34}{row['products']:9d}{row['seconds']:9.1f}{row['gradients']:10.1f}{row['megabytes']:7.0f}"
            f"{row['residual']:10.1e}{failed}"
        )
    passed = [row for name, row in rows if row["residual"] <= TOL and name != "lt_lib"]
    mine = dict(rows).get("lt_lib")
    if mine and passed:
        best = min(row["gradients"] for row in passed)
        print(f"time against the fastest that passes: {best / mine['gradients']:.2f} times faster")


def product_costs(options: argparse.Namespace) -> None:
    """Print set-up and product of each method, the least of three products."""
    net, x, y = network(options.net, 0)
    x, y = x[: options.images], y[: options.images]
    print(f"{options.net}, {options.images} images: set-up and one product, in gradients")
    for method in ("retained", "recompute", "forward_over_reverse", "linearize"):
        HessianOperator(net, x[:2], y[:2], method=method).matvec(
            torch.ones(sum(map(Tensor.numel, net.parameters())))
        )
        begin = time.process_time()
        operator = HessianOperator(net, x, y, method=method)
        setup, v, times = time.process_time() - begin, torch.ones(operator.size), []
        gradients = []
        for _ in range(3):  # interleaved, as the machine's speed drifts
            begin = time.process_time()
            operator.matvec(v)
            times.append(time.process_time() - begin)
            begin = time.process_time()
            torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
            gradients.append(time.process_time() - begin)
        print(f"{method:22}{setup / min(gradients):8.2f}{min(times) / min(gradients):8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=("resnet20", "resnet18"), default="resnet20")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--products", action="store_true", help="compare product methods instead")
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--solver", choices=SOLVERS, help=argparse.SUPPRESS)
    parser.add_argument("--weights", default="build/benchmark_curvature.pt", help="where the network is kept")
    options = parser.parse_args()
    if options.solver:
        print(json.dumps(measure(options)))
        return
    if options.products:
        product_costs(options)
        return
    net, _, _ = network(options.net, 3)
    torch.save(net.state_dict(), options.weights)
    print(f"{options.net}, {options.images} images, {options.pairs} pairs, tol {TOL:g}, one thread of")
    print(f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}")
    rows = [(name, found) for name in ("lt_lib", "curvlinops + eigsh") if (found := run(options, name))]
    if default := run(options, "hessian-eigenthings"):
        rows.append(("hessian-eigenthings, default", default))
        if least := fewest(options):
            rows.append((f"hessian-eigenthings, {least[0]} steps", least[1]))
    report(rows)


if __name__ == "__main__":
    main()
