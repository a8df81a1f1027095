"""Trainings that one process does in the tests, and two do when this file is a script."""

import sys
from pathlib import Path

import safetensors.torch
import torch
from small_training import NORMALISE, Images, KeepStates, small_net, some_images
from torch import nn

from lt_lib._processes import Processes, current, together
from lt_lib.losses import make_loss
from lt_lib.nets import build_net
from lt_lib.reweighting import InverseReweighting
from lt_lib.training import TrainConfig, evaluate_together, gathered, processes, train
from lt_lib.training.split import own_randomness

COUNTS = (39, 14, 6, 2)  # 61 images: batches of 9 leave 7, and the smallest class is missing in most
LONG = {"ce": 15, "released": 15}  # epochs of seven batches: 105 steps; others 3 epochs
INVERSE = {
    "ce": {"name": "ce"},
    "released": {"name": "inverse", "preset": "as_released", "start_epoch": 2},
    "written": {"name": "inverse", "preset": "as_written", "alpha": 0.5},
    "running": {"name": "inverse", "class_loss": "running", "mean": "macro", "macro": "step", "alpha": 0.1},
    "by_class": {"name": "inverse", "reduction": "class", "prior": "inverse", "alpha": 0.3, "clamp": 2.0},
}
RECIPES = {"features": "ib", "glmc": "glmc", "bcl": "bcl"}


def long_tailed(size=6):
    images = some_images(sum(COUNTS), size=size)
    return Images(images.images, torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS)))


class Watched(nn.Module):
    """A loss that keeps the class losses of every batch that it is given, NaN for an absent class."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.recipe, self.seen = loss, loss.recipe, []

    def set_epoch(self, epoch, epochs):
        self.loss.set_epoch(epoch, epochs)

    def forward(self, logits, labels):
        own = nn.functional.cross_entropy(logits.detach(), labels, reduction="none").double()
        self.seen.append(torch.stack([own[labels == c].mean() for c in range(4)]))
        return self.loss(logits, labels)


def net_of(kind, seed=0):
    if kind in RECIPES:
        config = {"depth": 8, "width": 4, "extras": None if kind == "features" else kind}
        return build_net(config, classes=4, channels=1, seed=seed).double()
    net = small_net(seed, classes=4)
    if kind in ("plain", "dropout"):
        net.bn = nn.Identity() if kind == "plain" else nn.Dropout(0.5)
    return net


def case(hyper, kind="plain", dtype=torch.float64, epochs=3, state=None, **settings):
    """Train, and return weights, state of the loss, class losses of each step and last momentum."""
    settings = {"batch": 9, "lr": 0.05, "device": "cpu", "augment": "shift", **settings}
    hyper = dict(hyper)
    loss = make_loss(hyper.pop("name"), COUNTS, **hyper)
    watched = Watched(loss) if kind in ("plain", "norm") else loss
    states = KeepStates()
    net = net_of(kind).to(dtype)
    config = TrainConfig(epochs=epochs, **settings)
    train(net, watched, long_tailed(), config, 3, NORMALISE, [states], state)
    last = states.states[epochs].tensors
    seen = {"class_losses": torch.stack(watched.seen)} if isinstance(watched, Watched) else {}
    return {name: value.clone() for name, value in last.items()} | seen, states.states


def local_norm():
    """Ten steps on batch statistics: what the tests compare under both kinds of normalisation."""
    return case({"name": "ce"}, "norm", epochs=2, batch=12, augment="none")[0]


def every_case():
    """Yield (name, tensors) of each training."""
    for name, hyper in INVERSE.items():
        yield name, case(hyper, epochs=LONG.get(name, 3))[0]
        yield (
            f"{name}_32",
            case(
                {**hyper, "start_epoch": 0} if name == "released" else hyper,
                dtype=torch.float32,
                epochs=1,
                batch=6,
            )[0],
        )
    for recipe, loss in RECIPES.items():
        yield recipe, case({"name": loss}, recipe, epochs=1, batch=25)[0]
    yield "three_views", case({"name": "ce"}, "norm", epochs=1, views="three")[0]
    yield "tiny", case({"name": "ce"}, epochs=1, batch=1, lr=0.01)[0]
    yield "norm", local_norm()


def _resumed():
    whole, states = case(INVERSE["running"], epochs=4)
    rest, _ = case(INVERSE["running"], epochs=4, state=states[2])
    return {
        name: torch.tensor(torch.equal(whole[name], rest[name])) for name in whole if name != "class_losses"
    }


def _begun_alone():
    """A training that one process began and two finish."""
    with together(Processes()):
        _, states = case(INVERSE["running"], epochs=4)
    return case(INVERSE["running"], epochs=4, state=states[2])[0]


def gradients(team, wrap):
    """Gradients of one reweighted step of a loop of one's own, by name."""
    net = net_of("plain").double()
    loss = InverseReweighting(COUNTS, alpha=0.5, dtype=torch.float64)
    part = long_tailed()
    wrapped = wrap(net)
    logits = wrapped(part.images[team.share(61)].double() / 255)
    loss(gathered(logits, team, 61), part.labels).backward()
    return {name: p.grad for name, p in net.named_parameters()}


def _drawn(team):
    """Random numbers of each process's own rows, and those that all draw alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with own_randomness(team, torch.device("cpu")):
            own = torch.rand(3 + team.rank)
        return {"own": own[:3], "after": torch.rand(3)}


def _evaluated():
    net = small_net(classes=4)
    few = Images(long_tailed().images[:1], long_tailed().labels[:1])
    every, one = (evaluate_together(net, part, NORMALISE, batch=10) for part in (long_tailed(), few))
    return {"logits": every.logits, "features": every.features, "labels": every.labels, "one": one.logits}


def _refused():
    said = {}
    rank, config = current().rank, TrainConfig(epochs=1, device="cpu")
    for name, net, loss in (
        ("weights", small_net(rank, classes=4), "ce"),
        ("meta", small_net(classes=4), "meta"),
    ):
        try:
            train(net, make_loss(loss, COUNTS), long_tailed(), config, 3, NORMALISE)
        except ValueError as error:
            said[name] = str(error)
    try:
        train(small_net(classes=4), make_loss("ce", COUNTS), long_tailed(), config, rank, NORMALISE)
    except ValueError as error:
        said["seed"] = str(error)
    return said


def main(folder):
    meet = f"file://{folder}/meet"
    found = {}
    with processes(init_method=meet, timeout=120) as team:
        for name, tensors in every_case():
            found |= {f"{name}/{key}": value for key, value in tensors.items()}
        found |= {f"resumed/{key}": value for key, value in _resumed().items()}
        dropped = case({"name": "ce"}, "dropout", epochs=1, batch=30)[0]
        found |= {f"dropout/{key}": value for key, value in dropped.items()}
        found |= {f"begun_alone/{key}": value for key, value in _begun_alone().items()}
        wrapped = gradients(team, nn.parallel.DistributedDataParallel)
        found |= {f"wrapped/{key}": value for key, value in wrapped.items()}
        found |= {f"drawn/{key}": value for key, value in _drawn(team).items()}
        found |= {f"evaluated/{key}": value for key, value in _evaluated().items()}
        said = _refused()
        team.wait()
    with processes("local", init_method=f"{meet}_local", timeout=120) as team:
        found |= {f"local/{key}": value for key, value in local_norm().items()}
    assert current().alone
    tensors = {name: value.contiguous() for name, value in found.items()}
    safetensors.torch.save_file(tensors, folder / f"{team.rank}.safetensors", said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
