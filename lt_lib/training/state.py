"""What a training needs to go on after a finished epoch, as tensors and JSON values."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lt_lib.training.optimisers import Optimiser


@dataclass(frozen=True)
class TrainState:
    """State after `epoch` finished epochs and `batch` steps of the next one.

    The order of the data and the augmentation need no state: they depend on (seed, epoch) alone. The
    optimiser's settings come from the TrainConfig.
    """

    epoch: int
    tensors: dict[str, Tensor]  # "model.*", "loss.*", "optimiser.<slot>.<parameter number>", on the CPU
    extra: dict[str, Any]  # "steps": number of steps of each parameter; within an epoch see `Trainer.state`

    @property
    def batch(self) -> int:
        """Steps taken of the epoch that is not finished; 0 between two epochs."""
        return int(self.extra.get("batch", 0))


def capture(epoch: int, model: nn.Module, loss: nn.Module, optimiser: Optimiser) -> TrainState:
    """Copy the state of all three to the CPU."""
    parts = {"model": model.state_dict(), "loss": loss.state_dict(), "optimiser": _slots(optimiser)}
    copies = {
        f"{part}.{name}": value.detach().to("cpu", copy=True).contiguous()
        for part, tensors in parts.items()
        for name, value in tensors.items()
    }
    return TrainState(epoch, copies, {"steps": list(optimiser.steps)})


def restore(state: TrainState, model: nn.Module, loss: nn.Module, optimiser: Optimiser) -> None:
    """Load `state` into all three, in place.

    Raises:
        ValueError: the state belongs to another network, loss or optimiser; nothing has changed then.
    """
    slots = _slots(optimiser)
    for part, wanted in (("model", model.state_dict()), ("loss", loss.state_dict()), ("optimiser", slots)):
        _check_same(_part(state, part), wanted, part)
    model.load_state_dict(_part(state, "model"))
    loss.load_state_dict(_part(state, "loss"))
    for name, value in _part(state, "optimiser").items():
        slots[name].copy_(value)
    optimiser.steps = list(state.extra["steps"])


def _slots(optimiser: Optimiser) -> dict[str, Tensor]:
    return {
        f"{slot}.{i}": value for slot, values in optimiser.state.items() for i, value in enumerate(values)
    }


def _part(state: TrainState, part: str) -> dict[str, Tensor]:
    start = part + "."
    return {name[len(start) :]: value for name, value in state.tensors.items() if name.startswith(start)}


def _check_same(found: dict[str, Tensor], wanted: dict[str, Tensor], part: str) -> None:
    shapes, needed = ({name: tuple(v.shape) for name, v in d.items()} for d in (found, wanted))
    if shapes != needed:
        name = sorted(set(shapes.items()) ^ set(needed.items()))[0][0]
        raise ValueError(
            f"The checkpoint is of another {part}: `{name}` has shape {shapes.get(name)} there and "
            f"{needed.get(name)} here. Resume with the {part} that wrote it, or start afresh."
        )
