"""What the benchmark of eigenpairs compares: networks, solvers, and how a run is judged."""

import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks._well_posed import well_posed
from lt_lib.curvature import HessianOperator, lanczos
from lt_lib.data import load, normalisation
from lt_lib.nets import resnet

TOL = 1e-3
NETS = ("resnet20", "resnet18")
# energies of the steps between cold and warm start, in nats of the quadratic model, shared equally among the
# pairs. The largest is a step of surgery and decides; it was fixed before anything was measured, the smaller
# ones, which show from which step on a warm start pays, before any of them was
STEP_ENERGIES = (1e-4, 1e-3, 1e-2)
Product = Callable[[Tensor], Any]


class Pairs(NamedTuple):
    """What a solver gives back."""

    values: Tensor  # (k,)
    vectors: Tensor  # (k, P)
    products: int


class Task(NamedTuple):
    """What a solver gets: a network in eval mode, one batch, how many pairs, and a number of steps."""

    net: nn.Module
    x: Tensor
    y: Tensor
    k: int
    steps: int = 0


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


def network(name: str, epochs: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network trained on 1,024 digits, in eval mode, with all digits."""
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


def ours(task: Task) -> Pairs:
    pairs = lanczos(HessianOperator(task.net, task.x, task.y), task.k, TOL, which="LM")
    return Pairs(pairs.values, pairs.vectors, pairs.matvecs)


def eigenthings(task: Task) -> Pairs:
    from hessian_eigenthings.algorithms import lanczos as other_lanczos

    operator, steps = _eigenthings_operator(task), task.steps or None
    found = other_lanczos(operator, k=task.k, max_iter=steps, which="LM", reorthogonalize=True, seed=0)
    return Pairs(found.eigenvalues, found.eigenvectors, found.iterations)


def arpack(task: Task) -> Pairs:
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator, used = _curvlinops_operator(task).to_scipy(), 0

    def product(v: np.ndarray) -> np.ndarray:
        nonlocal used
        used += 1
        return operator @ v.reshape(-1)

    size = operator.shape[0]
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    counted = LinearOperator((size, size), matvec=product, dtype=np.float32)
    values, vectors = eigsh(counted, k=task.k, which="LM", tol=TOL, v0=start)
    return Pairs(torch.from_numpy(values), torch.from_numpy(vectors.T), used)


def pyhessian(task: Task) -> Pairs:
    import pyhessian as library

    module: Any = sys.modules["pyhessian.hessian"]
    product, used = module.hessian_vector_product, 0

    def counted(*arguments: Any) -> Any:
        nonlocal used
        used += 1
        return product(*arguments)

    module.hessian_vector_product = counted
    torch.manual_seed(0)
    operator = library.hessian(task.net, nn.CrossEntropyLoss(), data=(task.x, task.y), cuda=False)
    values, vectors = operator.eigenvalues(maxIter=100, tol=TOL, top_n=task.k)
    module.hessian_vector_product = product
    rows = torch.stack([torch.cat([part.detach().reshape(-1) for part in v]) for v in vectors])
    task.net.zero_grad()
    return Pairs(torch.tensor(values), rows, used)


def _eigenthings_operator(task: Task) -> Any:
    from hessian_eigenthings.loss_fns import supervised_loss
    from hessian_eigenthings.operators import HessianOperator as OtherOperator

    return OtherOperator(task.net, [(task.x, task.y)], supervised_loss(nn.CrossEntropyLoss()))


def _curvlinops_operator(task: Task) -> Any:
    from curvlinops import HessianLinearOperator

    parameters, data = list(task.net.parameters()), [(task.x, task.y)]
    return HessianLinearOperator(task.net, nn.CrossEntropyLoss(), parameters, data, check_deterministic=False)


class Solver(NamedTuple):
    """A solver, the module it needs, and how its library multiplies one vector."""

    solve: Callable[[Task], Pairs]
    module: str
    product: Callable[[Task], Product] | None

    @property
    def installed(self) -> bool:
        """Whether its library can be imported."""
        return find_spec(self.module) is not None


SOLVERS = {
    "lt_lib": Solver(ours, "lt_lib", lambda task: HessianOperator(task.net, task.x, task.y).matvec),
    "hessian-eigenthings": Solver(
        eigenthings, "hessian_eigenthings", lambda task: _eigenthings_operator(task).matvec
    ),
    "curvlinops + eigsh": Solver(arpack, "curvlinops", lambda task: _curvlinops_operator(task).__matmul__),
    "PyHessian": Solver(pyhessian, "pyhessian", None),
}


def residuals(net: nn.Module, x: Tensor, y: Tensor, pairs: Pairs) -> list[float]:
    """Return relative residuals by products of PyTorch's own double backward."""
    parameters, found = list(net.parameters()), []
    gradient = torch.autograd.grad(cross_entropy(net(x), y), parameters, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in gradient])
    for value, vector in zip(pairs.values.tolist(), pairs.vectors, strict=True):
        image = torch.autograd.grad(flat, parameters, vector.to(flat.dtype), retain_graph=True)
        error = torch.cat([part.reshape(-1) for part in image]).double() - value * vector.double()
        found.append(float(error.norm()) / abs(value))
    return found


def gradient_time(task: Task) -> float:
    """Return the CPU time of one gradient of the plain model."""
    begin = time.process_time()
    torch.autograd.grad(cross_entropy(task.net(task.x), task.y), list(task.net.parameters()))
    return time.process_time() - begin


def compared(task: Task, product: Product, size: int, repeats: int = 3) -> tuple[float, float]:
    """Return the CPU times of one gradient and one product, the least of several taken in turn."""
    v = torch.ones(size) / size**0.5
    gradients, products = [], []
    for _ in range(repeats):  # in turn, as a machine's speed drifts
        gradients.append(gradient_time(task))
        begin = time.process_time()
        product(v)
        products.append(time.process_time() - begin)
    return min(gradients), min(products)


def measure(name: str, case: str, images: int, k: int, steps: int, weights: Path) -> dict[str, Any]:
    """Run one solver in this process and judge its pairs."""
    solver, task = SOLVERS[name], _task(case, images, k, steps, weights)
    solver.solve(Task(task.net, task.x[:2], task.y[:2], 2, 8))  # loads what is loaded on first use
    first = min(gradient_time(task) for _ in range(2))
    before, load, wall, cpu = peak_memory(), os.getloadavg()[0], time.perf_counter(), time.process_time()
    pairs = solver.solve(task)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = peak_memory()
    size = pairs.vectors.shape[1]
    gradient, product = first, None
    if solver.product is not None:
        later, product = compared(task, solver.product(task), size)
        gradient = min(first, later)
        product /= later
    errors = residuals(task.net, task.x, task.y, pairs)
    return {
        "products": pairs.products,
        "cpu": cpu,
        "wall": wall,
        "gradients": cpu / gradient,
        "gradient": gradient,
        "product": product,
        "peak": peak / 2**20,
        "before": before / 2**20,
        "residual": max(errors),
        "passed": sum(error <= TOL for error in errors),
        "values": sorted(pairs.values.tolist(), reverse=True),
        "load": load,
        "parameters": size,
    }


def warm_starts(case: str, images: int, k: int, weights: Path) -> list[dict[str, Any]]:
    """Return products after steps of surgery, warm and cold, by energy.

    A step goes along all k eigenvectors, by sqrt(2 energy / (k |lambda_i|)) each, signs in turn.
    """
    net, x, y, *_ = _task(case, images, k, 0, weights)
    earlier = lanczos(HessianOperator(net, x, y), k, TOL, which="LM")
    parameters = list(net.parameters())
    origin = parameters_to_vector(parameters).detach().clone()
    signs = (-1.0) ** torch.arange(k)
    rows = []
    for energy in STEP_ENERGIES:
        lengths = (2 * energy / (k * earlier.values.abs())).sqrt()
        step = (lengths * signs).to(earlier.vectors.dtype) @ earlier.vectors
        with torch.no_grad():
            vector_to_parameters(origin + step, parameters)
        rows.append({"energy": energy, "length": float(step.norm())} | _warm_and_cold(net, x, y, earlier))
    return rows


def _warm_and_cold(net: nn.Module, x: Tensor, y: Tensor, earlier: Any) -> dict[str, Any]:
    operator, k = HessianOperator(net, x, y), len(earlier.values)
    cold, warm = (lanczos(operator, k, TOL, which="LM", seed=1, start=start) for start in (None, earlier))
    return {
        "cold": cold.matvecs,
        "warm": warm.matvecs,
        "moved": float((earlier.values.abs() / cold.values.abs() - 1).abs().max()),
        "residual": max(residuals(net, x, y, Pairs(warm.values, warm.vectors, 0))),
    }


def _task(case: str, images: int, k: int, steps: int, weights: Path) -> Task:
    warnings.simplefilter("ignore")
    net, x, y = network(case, 0)
    net.load_state_dict(torch.load(weights, weights_only=True))
    kept = well_posed(net, x, images)
    return Task(net, x[kept], y[kept], k, steps)


def peak_memory() -> int:
    """Return the largest resident size of this process so far, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def fewest_passing(first: int, limit: int, passes: Callable[[int], bool]) -> int | None:
    """Return the fewest steps up to `limit`, in twos from `first`, for which `passes` holds."""
    steps = first
    if passes(steps):
        while steps > 2 and passes(steps - 2):
            steps -= 2
        return steps
    while steps + 2 <= limit:
        steps += 2
        if passes(steps):
            return steps
    return None
