"""Table and picture of the benchmark of eigenpairs."""

import os
import platform
from pathlib import Path
from statistics import median
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
Rows = dict[str, list[dict[str, Any]]]  # by solver, one entry a repeat
BARS = {
    "time of the fastest peer that passes / ours": "at least 1.7",
    "our products / ARPACK's": "at most 0.9",
    "one product of ours, in gradients": "at most 2.6",
    "our products after a small step, warm / cold": "at most 0.87",
}


def machine() -> str:
    """Return what the times depend on."""
    name = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        models = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        name = models[0].split(":")[1].strip() if models else name
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB, {torch.backends.cpu.get_cpu_capability()}, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, threads {torch.get_num_threads()}, float32"
    )


def ratios(rows: Rows, warm: list[dict[str, Any]], tol: float) -> dict[str, float]:
    """Return the figures that have a bar; one that cannot be formed is left out."""
    found: dict[str, float] = {}
    mine = rows.get("lt_lib", [])
    passing = [
        median(r["gradients"] for r in runs)
        for name, runs in rows.items()
        if name != "lt_lib" and runs and max(r["residual"] for r in runs) <= tol
    ]
    names = iter(BARS)
    time, products, cost, start = (next(names) for _ in range(4))
    if mine and passing:
        found[time] = min(passing) / median(r["gradients"] for r in mine)
    if mine and rows.get("curvlinops + eigsh"):
        found[products] = mine[0]["products"] / rows["curvlinops + eigsh"][0]["products"]
    if mine:
        found[cost] = median(r["product"] for r in mine)
    if warm:
        found[start] = warm[-1]["warm"] / warm[-1]["cold"]
    return found


def table(title: str, rows: Rows, missing: list[str], warm: list[dict[str, Any]], tol: float) -> str:
    """Return one case in Markdown."""
    lines = [
        f"## {title}",
        "",
        "| solver | products | CPU s | wall s | in gradients | one product | peak MiB | residual | passed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [_line(name, runs, tol) for name, runs in rows.items()]
    lines += [f"| {name} | not installed | | | | | | | |" for name in missing]
    lines += ["", "| figure | bar | measured |", "| --- | --- | ---: |"]
    lines += [f"| {name} | {BARS[name]} | {value:.2f} |" for name, value in ratios(rows, warm, tol).items()]
    if warm:
        lines += ["", *_warm(warm)]
    return "\n".join([*lines, ""])


def _warm(steps: list[dict[str, Any]]) -> list[str]:
    """Return the table of warm starts; the last step decides."""
    head = [
        "Warm start: `start=` the earlier pairs, after a step along all of them.",
        "",
        "| energy, nats | length | eigenvalues moved by up to | cold | warm | warm / cold | residual |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    return head + [
        f"| {s['energy']:g} | {s['length']:.2g} | {100 * s['moved']:.1f} % | {s['cold']} | {s['warm']} "
        f"| {s['warm'] / s['cold']:.2f} | {s['residual']:.1e} |"
        for s in steps
    ]


def _line(name: str, runs: list[dict[str, Any]], tol: float) -> str:
    worst, gradients = max(r["residual"] for r in runs), [r["gradients"] for r in runs]
    count = len(runs[0]["values"])
    passed = "all" if worst <= tol else f"**{min(r['passed'] for r in runs)} of {count}**"
    spread = "" if len(runs) == 1 else f" ({min(gradients):.0f} to {max(gradients):.0f})"
    cost = [r["product"] for r in runs if r["product"]]
    return (
        f"| {name} | {runs[0]['products']} | {median(r['cpu'] for r in runs):.1f} "
        f"| {median(r['wall'] for r in runs):.1f} | {median(gradients):.1f}{spread} "
        f"| {f'{median(cost):.2f}' if cost else ''} | {max(r['peak'] for r in runs):.0f} "
        f"| {worst:.1e} | {passed} |"
    )


def picture(cases: dict[str, Rows], tol: float, file: Path) -> bool:
    """Draw the time of each run in gradients, failed ones hatched; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings = {"svg.hashsalt": "benchmark", "svg.fonttype": "path", "font.size": 9}
    with matplotlib.rc_context(settings):
        figure, axes = plt.subplots(1, len(cases), figsize=(5.6 * len(cases), 2.4), layout="constrained")
        for axis, (title, rows) in zip([axes] if len(cases) == 1 else axes, cases.items(), strict=True):
            _bars(axis, title, rows, tol)
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)
    return True


def _bars(axis: Any, title: str, rows: Rows, tol: float) -> None:
    for place, (name, runs) in enumerate(rows.items()):
        value, failed = median(r["gradients"] for r in runs), max(r["residual"] for r in runs) > tol
        colour = "#0072B2" if name == "lt_lib" else "#999999"
        axis.barh(place, value, color="white" if failed else colour, edgecolor=colour, hatch="///" * failed)
        note = f"{value:.0f}" + (
            f"  fails: residual {max(r['residual'] for r in runs):.0e}" if failed else ""
        )
        axis.text(value, place, f" {note}", va="center")
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    longest = max(median(r["gradients"] for r in runs) for runs in rows.values())
    axis.set_xlim(0, 2 * longest)  # room for the words after the longest bar
    axis.set_xlabel("CPU time with set-up, in gradients")
    axis.set_title(title)
    axis.spines[["top", "right"]].set_visible(False)
