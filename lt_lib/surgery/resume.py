"""A running surgery as tensors and JSON types, and back again."""

import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from lt_lib.surgery.amplitude import AmplitudeState
from lt_lib.surgery.spikes import Found
from lt_lib.surgery.state import SurgeryState, below, digest_of, prefixed
from lt_lib.surgery.trace import Iteration, plain, typed

if TYPE_CHECKING:
    from lt_lib.surgery.loop import Loop

FORMAT = 2  # 2: a digest of what surgery does not move
_PARTS = ("config", "extra", "data", "network", "at", "amplitude", "trace")
_NAMES = {"config": "settings", "extra": "settings", "data": "images", "network": "tensors"}
_MAY_CHANGE = ("max_products", "max_memory", "unconverged")


def save(loop: "Loop") -> SurgeryState:
    """Return everything that `load` needs to go on to the same bits."""
    tensors = prefixed("first", loop.first) | prefixed("current", loop.weights.copy())
    tensors |= prefixed("spikes", loop.spikes.tensors())
    record = loop.identity | {
        "format": FORMAT,
        "at": dict(loop.at),
        "amplitude": None if loop.amplitude is None else plain(asdict(loop.amplitude)),
        "trace": [iteration.to_dict() for iteration in loop.trace],
    }
    if loop.found is not None and not loop.config.recompute:
        # found at other weights than the present ones, so they cannot be found again
        tensors["found"] = loop.found.vectors
        record["found"] = {f.name: plain(getattr(loop.found, f.name)) for f in _found_fields()}
    return SurgeryState(tensors, record)


def load(loop: "Loop", state: SurgeryState) -> None:
    """Put a saved state into a new loop and its weights into the model.

    Raises:
        ValueError: settings, data, network or format are not those of the state.
    """
    record, tensors = state.record, state.tensors
    _check_identity(loop, record)
    first, current = below("first", tensors), below("current", tensors)
    if loop.weights.digest() not in (digest_of(first), digest_of(current)):
        raise ValueError(
            "`state` belongs to other weights: the model has neither those from which its surgery began nor "
            "those that it reached. Load the model that surgery began with."
        )
    if record["at"].keys() != loop.at.keys() or (
        record["trace"] and record["trace"][-1]["weights"] != digest_of(current)
    ):
        raise ValueError(
            "`state` is damaged: weights and trace do not belong together. Start surgery afresh."
        )
    # in the order of the parameters: a file has its own
    loop.first = {name: first[name].to(value) for name, value in loop.first.items()}
    loop.at, loop.trace = dict(record["at"]), [Iteration.from_dict(entry) for entry in record["trace"]]
    if record["amplitude"] is not None:
        values: dict[str, Any] = {n: math.nan if v is None else v for n, v in record["amplitude"].items()}
        loop.amplitude = AmplitudeState(**values)
    home = next(iter(loop.first.values()))
    loop.spikes.load({n: t.to(home.device) for n, t in below("spikes", tensors).items()}, loop.at["phase"])
    if "found" in record:
        rest = {f.name: typed(f.type, record["found"][f.name], f.name) for f in _found_fields()}
        loop.found = Found(vectors=tensors["found"].to(home), **rest)
    loop.weights.put(current)


def identity(loop: "Loop") -> dict[str, Any]:
    """Return what a state and the surgery that resumes it must share: settings, digests of the data."""
    data = {
        name: digest_of({"images": part.images, "labels": part.labels})
        for name, part in (("hessian", loop.hessian), ("calibration", loop.calibration))
    }
    network = {"frozen weights and buffers": loop.others()}
    return {
        "config": loop.config.to_dict(),
        "data": data,
        "network": network,
        "extra": loop.spikes.settings(),
    }


def _check_identity(loop: "Loop", record: dict[str, Any]) -> None:
    if record.get("format") != FORMAT:
        raise ValueError(
            f"`state` must be of format {FORMAT}; found {record.get('format')}. Start surgery afresh."
        )
    lacking = [name for name in _PARTS if name not in record]
    if lacking:
        raise ValueError(f"`state` is not whole: its record lacks `{lacking[0]}`. Start surgery afresh.")
    mine = loop.identity
    for part, said in _NAMES.items():
        saved = record[part]
        apart = [
            name
            for name in sorted(mine[part].keys() | saved.keys())
            if mine[part].get(name) != saved.get(name) and name not in _MAY_CHANGE
        ]
        if apart:
            raise ValueError(
                f"`state` was saved with other {said}: `{apart[0]}` was {_brief(saved.get(apart[0]))} and is "
                f"{_brief(mine[part].get(apart[0]))}. Go on with the same, or start surgery afresh."
            )


def _brief(value: Any) -> str:
    return str(value)[:40]


def _found_fields() -> list[Any]:
    return [field for field in fields(Found) if field.name != "vectors"]
