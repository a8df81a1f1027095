"""Training throughput with every loss and recipe, relative to plain cross-entropy: ResNet-32, batch 128.

    OMP_NUM_THREADS=1 python -m benchmarks.training [--rounds 5] [--losses ce,ldam] [--device cpu]

A step is the trainer's own: draw, augment, normalise, forward, loss, backward, update. Each round takes one
step of every loss in turn (interleaved, so that other load on the machine hits them alike), in CPU time of
the one thread (in wall time on a GPU). "images" are those that the recipe forwards for each labelled image:
those of GLMC, balanced contrast and the three views pass the network two or three times as often as those of
cross-entropy. "ratio" is the median over the rounds of cross-entropy's time for as many images over the
loss's time in the same round: 0.95 is the limit. Balanced contrast and three views pass 384 images in one
batch, so cross-entropy's time is that of a batch of 384 there (the line "ce, batch 384"); elsewhere it is
that of a batch of 128, times "images".
Meta-learned reweighting forwards one batch to be trained on; what its two virtual passes cost shows in its
ratio, which has no limit.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from lt_lib.data import exponential_counts
from lt_lib.losses import LOSS_NAMES, make_loss
from lt_lib.nets import build_net
from lt_lib.training import TrainConfig, Trainer

CLASSES, BATCH = 50, 128  # an ETF of more than 65 classes needs more than the 64 features of width 16
LARGE = f"ce, batch {3 * BATCH}"
EPOCH = 10  # of the epochs that the losses are told about: past every deferral
FORWARDED = {"glmc": 2, "bcl": 3}
OPTIONS: dict[str, dict[str, object]] = {"ib": {"start_epoch": 0}}
NETS: dict[str, dict[str, object]] = {
    "ldam": {"head": "cosine"},
    "dr": {"head": "etf", "unit": True},
    "glmc": {"extras": "glmc"},
    "bcl": {"extras": "bcl"},
}


@dataclass(frozen=True)
class Images:
    """Random pictures and long-tailed labels."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    loss: str
    images: int  # forwarded for each labelled one
    settings: tuple[tuple[str, object], ...] = ()  # of training
    batch: int = BATCH  # labelled images


def cases(names: list[str]) -> list[Case]:
    found = [Case(name, name, FORWARDED.get(name, 1)) for name in names]
    return [
        *found,
        Case(LARGE, "ce", 1, batch=3 * BATCH),
        Case("ce, three views", "ce", 3, (("views", "three"),)),
        Case("ce, autoaugment", "ce", 1, (("augment", "autoaugment"),)),
        Case("ce, three views, autoaugment", "ce", 3, (("views", "three"), ("augment", "autoaugment"))),
    ]


def data(images: int) -> tuple[Images, list[int]]:
    counts = exponential_counts(500, 100, CLASSES)
    generator = torch.Generator().manual_seed(0)
    shares = torch.as_tensor(counts).double()
    labels = torch.multinomial(shares, images, True, generator=generator)
    pixels = torch.randint(256, (len(labels), 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Images(pixels, labels), counts.tolist()


class Steps:
    """Steps of one case, as `Trainer.run_epoch` takes them."""

    def __init__(self, case: Case, steps: int, width: int, device: str) -> None:
        part, counts = data(steps * case.batch)
        net: nn.Module = build_net(
            {"depth": 32, "width": width, **NETS.get(case.loss, {})}, CLASSES, channels=3, seed=0
        )
        loss = make_loss(case.loss, counts, **OPTIONS.get(case.loss, {}))
        settings = {"epochs": EPOCH + 1, "batch": case.batch, "augment": "crop_flip", "device": device}
        config = TrainConfig.from_dict({**settings, **dict(case.settings)})
        normalise = (torch.full((3,), 0.5), torch.full((3,), 0.25))
        self.trainer = Trainer(net, loss, part, config, 0, normalise)

    def run(self, clock: Callable[[], float]) -> float:
        """Return the seconds that an epoch takes."""
        start = clock()
        self.trainer.run_epoch(EPOCH)
        return clock() - start


def clock_of(device: torch.device) -> Callable[[], float]:
    if device.type != "cuda":
        return time.thread_time

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="steps of each loss in a round")
    parser.add_argument("--losses", default=",".join(LOSS_NAMES))
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    listed = ["ce", *(name for name in chosen.losses.split(",") if name != "ce")]
    steps = {case: Steps(case, chosen.steps, chosen.width, chosen.device) for case in cases(listed)}
    clock = clock_of(next(iter(steps.values())).trainer.device)
    times: dict[Case, list[float]] = {case: [] for case in steps}
    for number in range(chosen.rounds + 1):
        for case, own in steps.items():
            spent = own.run(clock)
            if number:  # the first round warms up
                times[case].append(spent / chosen.steps)
    print(f"torch {torch.__version__}, {chosen.device}, ResNet-32 of width {chosen.width}, batch {BATCH}")
    print(f"{'loss':30} images   ms a step   ratio")
    plain = {case.name: own for case, own in times.items()}
    for case, own in times.items():
        one_batch = case.images * case.batch == 3 * BATCH
        known = plain[LARGE] if one_batch else [case.images * spent for spent in plain["ce"]]
        ratio = statistics.median(ce / mine for ce, mine in zip(known, own, strict=True))
        print(
            f"{case.name:30} {case.images:6d} {1e3 * statistics.median(own):11.1f} {ratio:7.3f}", flush=True
        )


if __name__ == "__main__":
    main()
