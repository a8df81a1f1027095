"""Stems: the epochs that runs have in common because their losses are the same so far.

Runs on the same data, network, schedule and seeds whose losses start late are one training, bit for bit, up
to the first such start. What they share is their trunk: the cross-entropy run, or, for reweighting that
starts late on top of another loss (option `inverse`), the run with that loss alone. The stem of epoch e is
the trunk's checkpoint after e epochs: whoever trains through e leaves it in the store, and the others go on
from it. It is a cache: no run's key or result depends on whether there was one, and the folder may be
deleted at any time.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch

from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import Checkpoint, from_stem, loss_of, to_stem
from lt_lib.runs.store import Store
from lt_lib.training import resolve_device


def trunk(config: RunConfig) -> RunConfig:
    """Return the run whose first epochs those of `config` may be: with cross-entropy, or the loss within.

    Reads the data, for their counts.
    """
    loss = _alone(config) if _has_own_trunk(config) else {"name": "ce"}
    return replace(config, loss=loss, after=None)


def plain_epochs(config: RunConfig) -> int:
    """Return how many first epochs of the run are those of its trunk. Reads the data, for their counts.

    Raises:
        ValueError: the loss or the data are badly set.
    """
    if not _has_own_trunk(config):
        return loss_of(config, config.split()).plain_epochs(config.training.epochs)
    if config.loss.get("inverse") is None:
        return config.training.epochs
    # when reweighting starts does not depend on what is reweighted
    on_top = replace(config, loss={"name": "ce", "inverse": config.loss["inverse"]})
    return loss_of(on_top, config.split()).plain_epochs(config.training.epochs)


def _has_own_trunk(config: RunConfig) -> bool:
    """Say whether the run is none of cross-entropy from the start, and `inverse` its loss's last layer."""
    if config.loss["name"] == "inverse" or "defer_epoch" in config.loss:
        return False
    alone = replace(config, loss=_alone(config))
    return loss_of(alone, config.split()).plain_epochs(config.training.epochs) == 0


def _alone(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in config.loss.items() if name != "inverse"}


def _loss_prefix(config: RunConfig) -> str | None:
    """Return where the state of the trunk's loss stands in the run's, or None if that loss has none."""
    if not _has_own_trunk(config):
        return None
    return "loss." if config.loss.get("inverse") is None else "loss.loss."


def _to_trunk(config: RunConfig, checkpoint: Checkpoint) -> Checkpoint:
    stem, prefix = to_stem(config, checkpoint), _loss_prefix(config)
    if prefix is None:
        return stem
    state = {
        f"loss.{name.removeprefix(prefix)}": tensor
        for name, tensor in checkpoint.state.tensors.items()
        if name.startswith(prefix)
    }
    return replace(stem, state=replace(stem.state, tensors=stem.state.tensors | state))


def _from_trunk(config: RunConfig, stem: Checkpoint) -> Checkpoint:
    prefix = _loss_prefix(config)
    if prefix is None:
        return from_stem(config, stem)
    loss = {name: tensor for name, tensor in stem.state.tensors.items() if name.startswith("loss.")}
    rest = {name: tensor for name, tensor in stem.state.tensors.items() if name not in loss}
    own = from_stem(config, replace(stem, state=replace(stem.state, tensors=rest)))
    state = {prefix + name.removeprefix("loss."): tensor for name, tensor in loss.items()}
    return replace(own, state=replace(own.state, tensors=own.state.tensors | state))


class Stems:
    """The stems that one run may start from, and those that it leaves for others.

    The lock of the trunk's stems is held from `furthest` until the last of them is there, so that of several
    processes one trains them and the others wait. It is taken after the run's own lock and whoever holds it
    waits for no other, so there is no deadlock.

    Args:
        config: the run.
        store: where they lie.
        wanted: epochs that other runs want; those after the loss's start are passed over.
    """

    def __init__(self, config: RunConfig, store: Store, wanted: Iterable[int] = ()) -> None:
        self.config, self.store, self.trunk = config, store, trunk(config)
        plain = plain_epochs(config)
        self.epochs = sorted(e for e in {*wanted, plain} if 0 < e <= plain and e < config.training.epochs)
        self.name = _name(self.trunk, str(resolve_device(config.training.device)))
        self._held = contextlib.ExitStack()

    def __enter__(self) -> "Stems":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def furthest(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return where to go on: the run's own `checkpoint`, or a stem that is further.

        Raises:
            StoreError: the store cannot be written.
        """
        reached = checkpoint.state.epoch if checkpoint else 0
        self.epochs = [epoch for epoch in self.epochs if epoch > reached]
        if self.epochs:
            self._held.enter_context(self.store.lock(f"{self.name}.stem"))
        for epoch in reversed(self.epochs):
            stem = self.store.load_stem(self.name, self.trunk, epoch)
            if stem is not None:
                checkpoint = _from_trunk(self.config, stem)
                self._passed(epoch)
                break
        return checkpoint

    def leave(self, checkpoint: Checkpoint) -> None:
        """Store the run's state, if its epoch is one that is wanted.

        Raises:
            StoreError: the store cannot be written.
        """
        epoch = checkpoint.state.epoch
        if epoch in self.epochs and not checkpoint.state.batch:
            self.store.save_stem(self.name, self.trunk, _to_trunk(self.config, checkpoint))
            self._passed(epoch)

    def _passed(self, epoch: int) -> None:
        self.epochs = [later for later in self.epochs if later > epoch]
        if not self.epochs:
            self._held.close()


def stem_names(trunk: RunConfig) -> set[str]:
    """Return the names that the stems of `trunk` may have with this version of torch. Reads the data."""
    devices = {"cpu", "cuda", "cuda:0", "mps", str(resolve_device(trunk.training.device))}
    return {_name(trunk, device) for device in devices}


def _name(trunk: RunConfig, device: str) -> str:
    # a stem lies long: it must not carry the bits of one torch version or device into runs on another
    parts = [trunk.key(), torch.__version__, device]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def plan(configs: Iterable[RunConfig]) -> list[tuple[RunConfig, list[int]]]:
    """Return the runs with the stems that each should leave, in an order in which few wait for another.

    Of the runs with a trunk in common, the one that is plain for longest comes first; then those that share
    nothing, then the others; last those with `after` whose base another run trains. A badly set run shares
    nothing: it fails when it is its turn.
    """
    configs = list(configs)
    followers = _followers(configs)
    groups: dict[str, list[tuple[int, int]]] = {}  # trunk -> (plain epochs, position) of its runs
    for position, config in enumerate(configs):
        if position in followers:
            continue
        with contextlib.suppress(ValueError):
            if plain := plain_epochs(config):
                group = json.dumps(trunk(config).to_dict(), sort_keys=True)
                groups.setdefault(group, []).append((plain, position))
    rank = [3 if position in followers else 1 for position in range(len(configs))]
    wanted: list[list[int]] = [[] for _ in configs]
    for group, members in groups.items():
        if len(members) == 1 and json.loads(group)["loss"] != {"name": "ce"}:
            continue  # a loss of its own, with which no other run begins
        leader = max(members, key=lambda member: member[0])
        for plain, position in members:
            rank[position] = 0 if position == leader[1] else 2
            wanted[position] = sorted({epochs for epochs, _ in members if epochs <= plain})
    order = sorted(range(len(configs)), key=rank.__getitem__)
    return [(configs[position], wanted[position]) for position in order]


def _followers(configs: list[RunConfig]) -> set[int]:
    """Return the positions of runs that find their base trained: by itself, or by the first that needs it."""
    bases = [json.dumps(config.base().to_dict(), sort_keys=True) for config in configs]
    trains: dict[str, int] = {}
    for position in sorted(range(len(configs)), key=lambda p: configs[p].after is not None):
        trains.setdefault(bases[position], position)
    return {p for p, config in enumerate(configs) if config.after is not None and trains[bases[p]] != p}
