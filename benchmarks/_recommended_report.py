"""The table of `benchmarks.recommended`, and what it says of the first trials."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks._eigenpairs_report import machine
from lt_lib.metrics import paired_comparison, seed_interval

Rows = Mapping[str, Sequence[Mapping[str, float]]]
NUMBERS = {"plain": "accuracy", "sigma": "σ", "worst": "worst class"}  # all sets judged are balanced
# trial, what it said, (method, number, against, "higher" or "lower")
TRIALS: tuple[tuple[str, str, tuple[str, str, str, str]], ...] = (
    ("FB3", "surgery as written lowers σ (26.7 to 16.9)", ("as written", "sigma", "base", "lower")),
    ("FB3", "and raises accuracy (78.9 to 80.8)", ("as written", "plain", "base", "higher")),
    (
        "FB4",
        "a bias fit has less σ (7.9) than surgery as written",
        ("bias fit", "sigma", "as written", "lower"),
    ),
    ("FB4", "at no more accuracy than it (80.5, 80.8)", ("bias fit", "plain", "as written", "lower")),
    (
        "FB5",
        "a bias fit stopped early has more accuracy than later (82.6, 80.9)",
        ("bias fit, 4 steps", "plain", "bias fit, 32 steps", "higher"),
    ),
    ("FB5", "and more σ (13.6, 8.3)", ("bias fit, 4 steps", "sigma", "bias fit, 32 steps", "higher")),
    (
        "FB5",
        "logit adjustment at τ = 1.5 has less σ than at τ = 1 (10.2, 15.7)",
        ("adjustment, τ = 1.5", "sigma", "adjustment, τ = 1", "lower"),
    ),
    (
        "FB5",
        "at τ = 1.5 it has more accuracy than the early bias fit (84.0, 82.6)",
        ("adjustment, τ = 1.5", "plain", "bias fit, 4 steps", "higher"),
    ),
    ("FB5", "and less σ (10.2, 13.6)", ("adjustment, τ = 1.5", "sigma", "bias fit, 4 steps", "lower")),
    (
        "FB6",
        "the differentiable variant has less σ than surgery as written (13.3, 16.9)",
        ("differentiable", "sigma", "as written", "lower"),
    ),
    ("FB6", "and more accuracy (82.8, 80.8)", ("differentiable", "plain", "as written", "higher")),
    (
        "FB6",
        "but more σ than logit adjustment at τ = 1.5 (13.3, 10.2)",
        ("differentiable", "sigma", "adjustment, τ = 1.5", "higher"),
    ),
    (
        "FB6",
        "and less accuracy (82.8, 84.0)",
        ("differentiable", "plain", "adjustment, τ = 1.5", "lower"),
    ),
)
# what surgery adds: (method, against)
ADDED = (
    ("recommended", "base"),
    ("recommended", "as written"),
    ("recommended", "as released"),
    ("recommended", "differentiable"),
    ("recommended", "bias fit"),
    ("recommended", "bias fit, 32 steps"),
    ("recommended", "adjustment, τ = 1"),
    ("recommended", "adjustment, τ = 1.5"),
    ("recommended, then bias fit", "bias fit"),
    ("bias fit, then recommended", "bias fit"),
    ("recommended, then adjustment, τ = 1", "adjustment, τ = 1"),
)


def of(rows: Rows, name: str, number: str) -> list[float]:
    return [row[number] for row in rows[name]]


def table(rows: Rows) -> Iterator[str]:
    """Give means with intervals, in points."""
    yield f"| method | {' | '.join(NUMBERS.values())} |"
    yield f"| --- |{' ---: |' * len(NUMBERS)}"
    for name in rows:
        cells = [seed_interval(of(rows, name, number)).text(1, 100) for number in NUMBERS]
        yield f"| {name} | {' | '.join(cells)} |"


def verdict(rows: Rows, method: str, number: str, against: str, way: str) -> tuple[str, str]:
    """Return the paired difference in points, and whether it has the sign that was said."""
    paired = paired_comparison(of(rows, method, number), of(rows, against, number))
    said, shown = paired.verdict(), paired.difference.text(1, 100)
    if said == "not distinguishable":
        return shown, "undecided"
    return shown, "holds" if said == way else "fails"


def trials(rows: Rows) -> Iterator[str]:
    yield "| trial | what it said | our difference, points | verdict |"
    yield "| --- | --- | ---: | --- |"
    for trial, words, (method, number, against, way) in TRIALS:
        yield f"| {trial} | {words} | {' | '.join(verdict(rows, method, number, against, way))} |"


def added(rows: Rows) -> Iterator[str]:
    yield f"| method | minus | {' | '.join(NUMBERS.values())} |"
    yield f"| --- | --- |{' ---: |' * len(NUMBERS)}"
    for method, against in ADDED:
        cells = []
        for number in NUMBERS:
            paired = paired_comparison(of(rows, method, number), of(rows, against, number))
            mark = "" if paired.verdict() == "not distinguishable" else "*"
            cells.append(paired.difference.text(1, 100) + mark)
        yield f"| {method} | {against} | {' | '.join(cells)} |"


def reading(rows: Rows) -> Iterator[str]:
    """Give what the differences mean, in sentences that follow from their intervals."""
    alone = [verdict(rows, "recommended", number, "bias fit", way)[1] for number, way in BETTER]
    beside = [verdict(rows, "recommended", number, "adjustment, τ = 1.5", way)[1] for number, way in BETTER]
    top = [verdict(rows, "recommended, then bias fit", number, "bias fit", way)[1] for number, way in BETTER]
    yield f"- Against a bias fit on the same images, the recommended surgery {_said(alone)}."
    yield f"- Against logit adjustment at τ = 1.5, which needs no calibration image, it {_said(beside)}."
    yield f"- With a bias fit after it, against that bias fit alone, it {_said(top)}."


BETTER = (("plain", "higher"), ("sigma", "lower"), ("worst", "higher"))
_WORDS = {"holds": "is better", "fails": "is worse", "undecided": "is not distinguishable"}


def _said(verdicts: Sequence[str]) -> str:
    groups: dict[str, list[str]] = {}
    for (number, _), found in zip(BETTER, verdicts, strict=True):
        groups.setdefault(_WORDS[found], []).append(NUMBERS[number])
    return "; ".join(f"{words} in {', '.join(names)}" for words, names in groups.items())


def report(
    about: Mapping[str, Any], held: Rows, beside: Rows, test: Rows, choice: tuple[str, Sequence[str]]
) -> str:
    """Return the whole page in Markdown.

    Args:
        about: settings to be told.
        held: the configurations on held-out calibration images.
        beside: base and controls on the same.
        test: every method on test images.
        choice: the chosen configuration, and all that tie.
    """
    net = about["net"]
    data = "digits (a trial of this script, not a result)" if about["quick"] else "Fashion-MNIST, factor 50"
    return "\n".join(
        [
            "# A recommended surgery, chosen on calibration images alone",
            "",
            f"Commit {about['commit']}. Machine: {machine()}. Data: {data}; {about['seeds']} networks "
            f"(ResNet-{net['depth']}, width {net['width']}, {about['parameters']:,} parameters), each with "
            f"its own split, cut and training; {about['images']} Hessian images; every correction is fitted "
            f"to the same {about['seen']} calibration images of a network; {about['test']} test images. "
            "Both sets are balanced, so accuracy is balanced accuracy. Numbers are points, mean and 95 % "
            "interval over networks (Student's t); differences are paired.",
            "",
            "## The choice, on the other half of the calibration images",
            "",
            "The rule, fixed with the grid before any result: the best mean balanced accuracy; others tie "
            "with it if the interval of their paired difference holds 0; of these the least mean σ.",
            "",
            *table({**held, **{f"({name})": rows for name, rows in beside.items()}}),
            "",
            f"In brackets: for comparison, not in the grid. Tied: {'; '.join(choice[1])}. "
            f"**Chosen: {choice[0]}.**",
            "",
            "## Test images",
            "",
            *table(test),
            "",
            "## The first trials, again",
            "",
            "The trials were one network of 175 thousand parameters with 500 calibration images a class, "
            "all of which steered; their numbers stand in brackets. Where the interval of a difference "
            "holds 0 the trial is undecided.",
            "",
            *trials(test),
            "",
            "## What the recommended surgery gives",
            "",
            "A star: the interval does not hold 0.",
            "",
            *added(test),
            "",
            *reading(test),
            "",
        ]
    )
