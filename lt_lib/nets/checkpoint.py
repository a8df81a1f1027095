"""Weights from a checkpoint file, of this project or of any other.

Nothing in a checkpoint is ever run: it is read as safetensors, or by `torch.load(..., weights_only=True)`.
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

_WRAPPERS = ("module.", "_orig_mod.")  # of (Distributed)DataParallel and torch.compile
_NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "weights")  # where trainers put it
_AVERAGED = ("ema_state_dict", "state_dict_ema", "model_ema", "ema_model", "ema")
_COUNT = "n_averaged"  # what `torch.optim.swa_utils.AveragedModel` counts beside its `module.`
_COUNTER = "num_batches_tracked"  # of BatchNorm, absent from old checkpoints; it enters no logit
_TENSORS = "Save its weights alone: `safetensors.torch.save_file(model.state_dict(), file)`."


def load_checkpoint(model: nn.Module, file: str | Path) -> nn.Module:
    """Put the weights of a checkpoint into `model`, in place, and return it; a refusal changes nothing.

    The file holds a state dict in safetensors or in torch's format, which is told from its first bytes; in
    torch's it may stand under a trainer's usual names, such as `state_dict` or `model`; averaged weights
    (`ema`, `model_ema` and the like) are taken where no others are there. The prefixes of
    DataParallel, `AveragedModel` and `torch.compile` are taken off, and so is a prefix that all names of the
    file share and none of the network has. Values are converted to the network's types; its modes stay.

    Args:
        model: built with the sizes of the checkpoint, also its number of classes.
        file: the checkpoint.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file would run code when it is loaded, is damaged or no checkpoint, or a tensor is
            missing, unknown, of another shape or kind, or not finite.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"The checkpoint `{path}` must be an existing file; found none. Check the path."
        )
    found = _state_dict(_read(path), path)
    own = model.state_dict()
    fitting = _aligned(found, list(own))
    _check_fit(fitting, own, path, type(model).__name__)
    model.load_state_dict(fitting, strict=False)  # what may be missing was checked
    return model


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        start = file.read(9)
    try:
        if start[8:] == b"{":  # after eight bytes that say how long the header is
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"it asks for `{asked[1]}`" if asked else "it holds more than tensors"
        raise ValueError(
            f"The checkpoint `{path.name}` could run code when it is loaded ({what}), so it was not opened; "
            f"only tensors in plain containers are read. {_TENSORS}"
        ) from error
    except Exception as error:  # torch and safetensors each raise kinds of their own on damage
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if "TorchScript" in reason:
            reason = "a TorchScript archive, which holds code beside its weights"
        raise ValueError(
            f"The checkpoint `{path.name}` must be a whole file of safetensors or of `torch.save`; found one "
            f"that cannot be read ({reason:.120}). Fetch it again. {_TENSORS}"
        ) from error


def _state_dict(entries: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(entries, Mapping):
        if entries and all(isinstance(value, Tensor) for value in entries.values()):
            return {str(name): value for name, value in entries.items()}
        inner = next(
            (name for name in (*_NESTED, *_AVERAGED) if isinstance(entries.get(name), Mapping)), None
        )
        if inner is not None:
            return _state_dict(entries[inner], path)
    found = _unlike_weights(entries)
    raise ValueError(
        f"The checkpoint `{path.name}` must hold a state dict, names with tensors, by itself or under "
        f"{', '.join(_NESTED)}; found {found}. {_TENSORS}"
    )


def _unlike_weights(entries: Any) -> str:
    if not isinstance(entries, Mapping):
        return f"one object of type {type(entries).__name__}"
    odd = [name for name, value in entries.items() if not isinstance(value, Tensor)]
    if 2 * len(odd) < len(entries):
        return f"`{odd[0]}` of type {type(entries[odd[0]]).__name__} among the tensors"
    return f"entries {', '.join(map(str, list(entries)[:5]))}" if entries else "no entries"


def _aligned(found: dict[str, Tensor], expected: list[str]) -> dict[str, Tensor]:
    """Return the tensors by the network's names, where the two differ by a prefix only."""
    found = {name: tensor for name, tensor in found.items() if name != _COUNT or name in expected}
    inner, outer = _prefix(found), _prefix(expected)
    bare = {name.removeprefix(inner): tensor for name, tensor in found.items()}
    wanted = {name.removeprefix(outer) for name in expected}
    shared = {name.partition(".")[0] + "." for name in bare if "." in name}
    if len(shared) == 1 and all("." in name for name in bare):
        (prefix,) = shared
        if not any(name.startswith(prefix) for name in wanted):
            bare = {name.removeprefix(prefix): tensor for name, tensor in bare.items()}
    return {outer + name: tensor for name, tensor in bare.items()}


def _prefix(names: Any) -> str:
    """Return the wrappers that all names begin with."""
    prefix = ""
    while names and (more := [w for w in _WRAPPERS if all(name.startswith(prefix + w) for name in names)]):
        prefix += more[0]
    return prefix


def _check_fit(found: dict[str, Tensor], own: Mapping[str, Tensor], path: Path, network: str) -> None:
    missing = [name for name in own if name not in found and not name.endswith(_COUNTER)]
    unknown = [name for name in found if name not in own]
    shapes = [name for name in found if name in own and found[name].shape != own[name].shape]
    complaints = []
    if missing:
        complaints.append(f"{len(missing)} of the network's tensors are missing (`{missing[0]}` first)")
    if unknown:
        complaints.append(f"{len(unknown)} of its tensors are unknown to the network (`{unknown[0]}` first)")
    if shapes:
        name = shapes[0]
        sizes = f"{tuple(found[name].shape)} there, {tuple(own[name].shape)} in the network"
        complaints.append(f"{len(shapes)} have another shape (`{name}`: {sizes})")
    if complaints:
        raise ValueError(
            f"The checkpoint `{path.name}` does not fit {network}: {'; '.join(complaints)}. Build the "
            "network as it was when the checkpoint was made, with as many classes and channels."
        )
    for name, value in found.items():
        plain = value.layout is torch.strided and not value.is_quantized and not value.is_meta
        if value.is_floating_point() != own[name].is_floating_point() or not plain:
            kind = "" if plain else " in a sparse, quantised or empty form"
            raise ValueError(
                f"`{name}` of `{path.name}` must be a plain tensor like {own[name].dtype}; found "
                f"{value.dtype}{kind}. Convert it, as in `value.to_dense().to({own[name].dtype})`."
            )
        if not bool(torch.isfinite(value.to(own[name].dtype)).all()):  # 1e300 is finite, but not in float32
            raise ValueError(
                f"`{name}` of the checkpoint `{path.name}` must be finite; found NaN or infinite values, as "
                "a training that diverged leaves. Take an earlier checkpoint."
            )
