"""Weights of a model as flat tensors: taken, put back to the bit, moved, and told apart by a digest."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib.curvature.guard import unwrapped
from lt_lib.curvature.problem import select


@dataclass(frozen=True, eq=False)
class SurgeryState:
    """Everything needed to go on after an iteration: tensors for a safetensors file, the rest for JSON."""

    tensors: dict[str, Tensor]  # flat; names with a dot, such as "start.head.weight"
    record: dict[str, Any]  # JSON types: settings, digests of the data, trace, amplitude rule


class Weights:
    """The chosen parameters of a model by name, in the order of `named_parameters()`.

    Each use looks them up anew, so that a layer or a parameter that was put in place of another is found.

    Args:
        model: any module; data-parallel wrappers are taken off.
        params: patterns of parameter names, as in `HessianOperator`.
    """

    def __init__(self, model: nn.Module, params: Any) -> None:
        self.model = unwrapped(model)
        self.names = tuple(select(self.model, params))

    @property
    def chosen(self) -> dict[str, nn.Parameter]:
        """The parameters that bear the names now.

        Raises:
            ValueError: one is there no more.
        """
        found = dict(self.model.named_parameters())
        gone = [name for name in self.names if name not in found]
        if gone:
            raise ValueError(
                f"The model no longer has the parameter `{gone[0]}`, which surgery moved. Bring it back to "
                "the form in which surgery began."
            )
        return {name: found[name] for name in self.names}

    def copy(self) -> dict[str, Tensor]:
        """Return copies by name."""
        return {name: p.detach().clone() for name, p in self.chosen.items()}

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Write `values` into the parameters, bit for bit.

        Raises:
            ValueError: names or shapes differ, or the parameters now have a type that cannot hold the bits.
        """
        chosen = self.chosen
        shapes = {name: tuple(p.shape) for name, p in chosen.items()}
        found = {name: tuple(value.shape) for name, value in values.items()}
        if shapes != found:
            apart = sorted(set(shapes.items()) ^ set(found.items()))[0]
            raise ValueError(
                f"The saved weights must be those of the chosen parameters; `{apart[0]}` {apart[1]} is "
                "on one side only. Pass the model that surgery began with, and the same `params`."
            )
        for name, p in chosen.items():
            if torch.promote_types(p.dtype, values[name].dtype) != p.dtype:
                raise ValueError(
                    f"The saved weights are of {values[name].dtype}, which parameters of {p.dtype} cannot "
                    f"hold to the bit (`{name}`). Convert the model back first."
                )
        with torch.no_grad():
            for name, p in chosen.items():
                p.copy_(values[name])

    def add(self, offset: Tensor) -> None:
        """Add a flat vector (P,) to the parameters, in place."""
        sizes = [p.numel() for p in self.chosen.values()]
        with torch.no_grad():
            for p, part in zip(self.chosen.values(), offset.split(sizes), strict=True):
                p.add_(part.view(p.shape).to(p))

    def digest(self) -> str:
        """Hex SHA-256 of names, shapes and bits."""
        return digest_of({name: p.detach() for name, p in self.chosen.items()})


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the hex SHA-256 of tensors with their names, types and shapes, in whatever order they come."""
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
        whole.update(raw.numpy().data)
    return whole.hexdigest()


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """Return tensors by name as one vector (P,)."""
    return torch.cat([value.reshape(-1) for value in values.values()])


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with `prefix.` before their names."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix.`, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
