"""Training stored runs once more, to say which of them this machine repeats bit for bit."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from lt_lib.runs.listing import FILES
from lt_lib.runs.results import Run
from lt_lib.runs.single import run
from lt_lib.runs.store import Store

_RESULTS = FILES[1:]  # the configuration may name another folder of the same data


@dataclass(frozen=True)
class Repeat:
    """What came of training a stored run once more.

    Attributes:
        key: the stored run.
        identical: None if it cannot be trained again as it was.
        text: a sentence.
    """

    key: str
    identical: bool | None
    text: str


def repeat(store: Store, key: str) -> Repeat:
    """Train a stored run once more in an empty store of its own, and compare every byte of its results.

    Raises:
        ValueError: `key` is no key, or there is no such whole run.
    """
    if store.damage(key) is not None:
        raise ValueError(f"There is no whole run {key} in {store.root}. `verify` says what is damaged.")
    try:
        stored = store.get(key)
        if stored is None or stored.config.key() != key:
            return Repeat(key, None, "cannot be repeated: its code or its data have changed since")
        with tempfile.TemporaryDirectory() as folder:
            return _compared(stored, run(stored.config, Store(folder)))
    except (ValueError, OSError, FloatingPointError) as error:
        return Repeat(key, None, f"cannot be repeated: {error}")


def _compared(stored: Run, again: Run) -> Repeat:
    differing = [name for name in _RESULTS if _content(stored.folder / name) != _content(again.folder / name)]
    if not differing:
        return Repeat(stored.key, True, f"bit-identical ({again.made['seconds']:g} s)")
    made = ", ".join(str(stored.made.get(name)) for name in ("machine", "instructions", "torch"))
    far = _distance(stored, again)
    text = f"differs in {', '.join(differing)}: weights by {far:.1e} at most. It was made on {made}"
    return Repeat(stored.key, False, text)


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _distance(stored: Run, again: Run) -> float:
    """Return the largest difference of two weights, relative to the largest weight of the tensor."""
    old, new = stored.weights(), again.weights()
    if {n: t.shape for n, t in old.items()} != {n: t.shape for n, t in new.items()}:
        return float("inf")
    scaled = [
        float((old[name].double() - new[name].double()).abs().max() / old[name].double().abs().max())
        for name in old
        if old[name].numel() and bool(old[name].ne(0).any()) and not torch.equal(old[name], new[name])
    ]
    return max(scaled, default=0.0)
