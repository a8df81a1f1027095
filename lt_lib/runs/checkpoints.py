"""Partial checkpoints: one safetensors file with its configuration, history and digest."""

import hashlib
import json
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, uint8

from lt_lib.runs.config import RunConfig
from lt_lib.runs.experiment import Checkpoint
from lt_lib.training import TrainState


class Damaged(Exception):
    """The file is not a whole checkpoint."""


def pack(config: RunConfig, checkpoint: Checkpoint) -> bytes:
    """Return the file's content."""
    state = checkpoint.state
    story = {"config": config.to_dict(), "epoch": state.epoch, "extra": state.extra, "rows": checkpoint.rows}
    # NaN stands for itself here: the text is read back by `unpack` alone
    note = json.dumps(story)
    metadata = {"run": note, "digest": _digest(note, state.tensors)}
    return safetensors.torch.save(state.tensors, metadata)


def unpack(content: bytes, config: RunConfig) -> Checkpoint:
    """Read `pack`'s content.

    Raises:
        Damaged: the digest does not fit, or the content is no checkpoint.
        ValueError: it belongs to another configuration.
    """
    try:
        tensors = safetensors.torch.load(content)
        metadata = _metadata(content)
        note = metadata["run"]
        if _digest(note, tensors) != metadata["digest"]:
            raise Damaged("its digest does not fit")
        story = json.loads(note)
        checkpoint = Checkpoint(TrainState(story["epoch"], tensors, story["extra"]), story["rows"])
        found: dict[str, Any] = story["config"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"it is no checkpoint: {type(error).__name__}") from error
    _check_config(found, config.to_dict())
    return checkpoint


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


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata


def _digest(note: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(note.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
