"""Partial checkpoints: one safetensors file with its configuration, history and digest.

All tensors stand end to end in one row of bytes, with their names, types and shapes in the file's metadata: a
network has many small tensors, and a checkpoint is written after each epoch.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import Checkpoint
from lt_lib.training import TrainState


class Damaged(Exception):
    """The file is not a whole checkpoint."""


def pack(config: RunConfig, checkpoint: Checkpoint) -> bytes:
    """Return the file's content."""
    state = checkpoint.state
    layout = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in state.tensors.items()]
    story = {
        "config": config.to_dict(),
        "epoch": state.epoch,
        "extra": state.extra,
        "layout": layout,
        "rows": checkpoint.rows,
    }
    note = json.dumps(story)  # a NaN stands for itself: the text is read by `unpack` alone
    row = torch.cat([_bytes(tensor) for tensor in state.tensors.values()])
    return safetensors.torch.save({"state": row}, {"run": note, "digest": _digest(note, row)})


def unpack(content: bytes, config: RunConfig) -> Checkpoint:
    """Read `pack`'s content.

    Raises:
        Damaged: the digest does not fit, or the content is no checkpoint.
        ValueError: it belongs to another configuration.
    """
    try:
        row = safetensors.torch.load(content)["state"]
        metadata = _metadata(content)
        note = metadata["run"]
        if _digest(note, row) != metadata["digest"]:
            raise Damaged("its digest does not fit")
        story = json.loads(note)
        state = TrainState(story["epoch"], _tensors(row, story["layout"]), story["extra"])
        checkpoint = Checkpoint(state, story["rows"])
        found: dict[str, Any] = story["config"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"it is no checkpoint: {type(error).__name__}") from error
    _check_config(found, config.to_dict())
    return checkpoint


def read_story(path: Path) -> dict[str, Any] | None:
    """Return the JSON part of a checkpoint's file ("config", "epoch", ...), or None if there is none.

    Reads the header alone; the digest is not compared.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                return None
            header = json.loads(file.read(length))
        story: dict[str, Any] = json.loads(header["__metadata__"]["run"])
        return story
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_config(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for settings in (found, wanted):
        settings["data"] = {**settings["data"], "root": None}
    differing = sorted(name for name in wanted if found.get(name) != wanted[name])
    if differing:
        name = differing[0]
        raise ValueError(
            f"The partial checkpoint belongs to another run: `{name}` is {found.get(name)} there and "
            f"{wanted[name]} here. Delete the store's `.partial` folder to start afresh."
        )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _tensors(row: Tensor, layout: list[tuple[str, str, list[int]]]) -> dict[str, Tensor]:
    tensors, at = {}, 0
    for name, kind, shape in layout:
        dtype: torch.dtype = getattr(torch, kind)
        size = math.prod(shape) * dtype.itemsize
        tensors[name] = row[at : at + size].clone().view(dtype).reshape(shape)
        at += size
    return tensors


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata


def _digest(note: str, row: Tensor) -> str:
    digest = hashlib.sha256(note.encode())
    digest.update(row.numpy().tobytes())
    return digest.hexdigest()
