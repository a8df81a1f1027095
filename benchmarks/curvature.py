"""Nine eigenpairs largest in magnitude against public libraries: products, time with set-up, true residuals.

    OMP_NUM_THREADS=1 python -m benchmarks.curvature [--quick] [--images 256] [--repeats 3] [--products]

Cases: ResNet-20 on 256 images, torchvision's ResNet-18 on 128 (`--quick`: 64 each). The table and the picture
go to `benchmarks/results/curvature-256.*`, named after the number of images or `-quick`. Finished runs are
kept in build/benchmarks and not repeated (`--fresh` does); ours are, once `lt_lib.curvature` has changed.

Each run is a process of its own on the same network (eval mode), batch and dtype, one thread. Time is CPU
time from the model to the pairs, set-up included, in seconds and in gradients of the plain model on the same
batch, timed in the same process. The residual is the largest ||H q - value q|| / |value| by one independent
product a pair (double backward of PyTorch's own operations). A run above 1e-3 has failed, whatever its time.

hessian-eigenthings takes a fixed number of steps: it is shown with its default and with the fewest, in twos,
after which every pair passes (what it took to find out is not counted). A library that is not installed is
named and left out. `--products` prints what the table of methods (`lt_lib.curvature.rules`) stands on: set-up
and one product of each method.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import lt_lib.curvature
from benchmarks import _eigenpairs as bench
from benchmarks._eigenpairs_report import RESULTS, Rows, machine, picture, table
from lt_lib.curvature import HessianOperator

KEPT = Path("build/benchmarks")
METHODS = ("retained", "recompute", "forward_over_reverse", "linearize")


def code_version() -> str:
    """Return a digest of the code that our runs measure."""
    files = sorted(Path(lt_lib.curvature.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:10]


def weights_of(case: str) -> Path:
    """Return the file of a case's trained network, training it if there is none."""
    file = KEPT / f"{case}.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        print(f"training {case}", flush=True)
        torch.save(bench.network(case)[0].state_dict(), file)
    return file


def run(case: str, images: int, k: int, solver: str, steps: int, repeat: int, fresh: bool) -> dict[str, Any]:
    """Return one run, made in a fresh process unless it is kept; `{"error": ...}` if it could not be made."""
    code = f"-{code_version()}" if solver in ("lt_lib", "warm") else ""
    name = f"{case}-{images}-{k}-{solver.replace(' ', '')}-{steps}-{repeat}{code}"
    file = KEPT / f"{name}.json"
    if file.exists() and not fresh:
        return dict(json.loads(file.read_text()))
    inner = {"case": case, "images": images, "k": k, "steps": steps, "weights": str(weights_of(case))}
    command = [
        sys.executable,
        "-m",
        "benchmarks.curvature",
        f"--inner={json.dumps(inner | {'name': solver})}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    file.write_text(json.dumps(found, indent=1))
    return found


def repeated(options: argparse.Namespace, case: str, images: int, solver: str, steps: int = 0) -> list[Any]:
    """Return the runs that could be made, saying each as it ends."""
    runs = []
    for repeat in range(options.repeats):
        found = run(case, images, options.pairs, solver, steps, repeat, options.fresh)
        label = f"  {solver} {steps or ''}".rstrip()
        if "error" in found:
            print(f"{label}: {found['error']}", flush=True)
            break
        print(f"{label}: {found['gradients']:.0f} gradients, residual {found['residual']:.1e}", flush=True)
        runs.append(found)
    return runs


def measured(options: argparse.Namespace, case: str, images: int) -> tuple[Rows, list[str], list[Any]]:
    """Return all runs of a case, the libraries that are not installed, and the warm starts."""
    rows: Rows = {}
    missing = [name for name, solver in bench.SOLVERS.items() if not solver.installed]
    for name in [name for name in bench.SOLVERS if name not in missing]:
        label = f"{name}, default" if name == "hessian-eigenthings" else name
        if runs := repeated(options, case, images, name):
            rows[label] = runs
    if "hessian-eigenthings, default" in rows:

        def passes(steps: int) -> bool:
            found = run(case, images, options.pairs, "hessian-eigenthings", steps, 0, options.fresh)
            print(f"  hessian-eigenthings {steps}: residual {found.get('residual', 'none')}", flush=True)
            return found.get("residual", 1.0) <= bench.TOL

        first = 2 * round(0.65 * rows["lt_lib"][0]["products"]) if "lt_lib" in rows else 2 * options.pairs
        least = bench.fewest_passing(first, 6 * options.pairs, passes)
        if least:
            runs = repeated(options, case, images, "hessian-eigenthings", least)
            rows[f"hessian-eigenthings, {least} steps"] = runs
    warm = run(case, images, options.pairs, "warm", len(bench.STEP_ENERGIES), 0, options.fresh)
    return rows, missing, warm.get("steps", [])


def inner(arguments: dict[str, Any]) -> dict[str, Any]:
    """Make one run in this process."""
    name, weights = arguments.pop("name"), Path(arguments.pop("weights"))
    if name == "warm":
        steps = bench.warm_starts(arguments["case"], arguments["images"], arguments["k"], weights)
        return {"steps": steps}
    return bench.measure(name, weights=weights, **arguments)


def product_costs(images: int) -> None:
    """Print set-up and product of each method, in gradients."""
    for case in bench.NETS:
        net, x, y = bench.network(case, 0)
        task = bench.Task(net, x[:images], y[:images], 1)
        print(f"{case}, {images} images: set-up and one product, in gradients")
        for method in METHODS:
            small = HessianOperator(net, x[:2], y[:2], method=method)  # loads what is loaded on first use
            small.matvec(torch.ones(small.size))
            begin = time.process_time()
            operator = HessianOperator(net, task.x, task.y, method=method)
            setup = time.process_time() - begin
            gradient, product = bench.compared(task, operator.matvec, operator.size)
            print(f"{method:22}{setup / gradient:8.2f}{product / gradient:8.2f}", flush=True)


def write(options: argparse.Namespace, cases: dict[str, Any]) -> str:
    """Write table and picture, and return the table."""
    name = "curvature-quick" if options.quick else f"curvature-{options.images}"
    name += f"-{options.case}" if options.case else ""
    RESULTS.mkdir(exist_ok=True)
    loads = [r["load"] for rows, _, _ in cases.values() for runs in rows.values() for r in runs]
    drawn = picture({t: rows for t, (rows, _, _) in cases.items()}, bench.TOL, RESULTS / f"{name}.svg")
    flags = " --quick" if options.quick else f" --images {options.images} --repeats {options.repeats}"
    flags += f" --case {options.case}" if options.case else ""
    text = [
        f"# Top {options.pairs} eigenpairs of the Hessian by magnitude, tol {bench.TOL:g}",
        "",
        f"Written by `python -m benchmarks.curvature{flags}`, which says how it measures. Machine: "
        f"{machine()}. "
        f"Load average when runs started: {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores"
        + (" (busy with other work: trust ratios more than seconds)." if max(loads) > 1.5 else "."),
        "",
        *([f"![Time of each solver]({name}.svg)", ""] if drawn else []),
        *(table(title, *parts, bench.TOL) for title, parts in cases.items()),
    ]
    (RESULTS / f"{name}.md").write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 images in both cases")
    parser.add_argument(
        "--case", choices=bench.NETS, help="this one alone; a later table of both takes its runs over"
    )
    parser.add_argument("--images", type=int, default=256, help="for ResNet-20; ResNet-18 takes half of them")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="make all runs again")
    parser.add_argument("--products", action="store_true", help="compare product methods instead")
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        print(json.dumps(inner(json.loads(options.inner))))
        return
    torch.set_num_threads(1)
    sizes = (64, 64) if options.quick else (options.images, options.images // 2)
    if options.products:
        product_costs(sizes[1])
        return
    cases = {}
    for case, images in zip(bench.NETS, sizes, strict=True):
        if options.case not in (None, case):
            continue
        title = f"{'ResNet-20' if case == 'resnet20' else 'torchvision ResNet-18'}, {images} images"
        print(title, flush=True)
        cases[title] = measured(options, case, images)
    print(write(options, cases), flush=True)


if __name__ == "__main__":
    main()
