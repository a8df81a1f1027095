"""A trained network as two files that stand alone: weights in safetensors, and a card in JSON.

The card says what the network is, what it was trained on, how its pixels are normalised and how well it did.
It names its weights by their content, and is written last: a folder holds the old pair or the new one, whole.
Nothing that is loaded is run.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from lt_lib import __version__
from lt_lib.data import ImageFiles, normalisation
from lt_lib.nets.own import load_checkpoint
from lt_lib.runs.card_entries import FORMAT, HERE, read_entries
from lt_lib.runs.files import replace, sha256
from lt_lib.runs.rebuild import built, extras_name, network_entry
from lt_lib.runs.results import Run

CARD = "card.json"


@dataclass(frozen=True)
class Guess:
    """What a network says about one image."""

    name: str  # the most likely class
    label: int  # its number
    probabilities: Tensor  # (C,) float32


@dataclass(frozen=True)
class Card:
    """A network with all that it takes to use it."""

    model: nn.Module  # on the CPU, in eval mode
    class_names: tuple[str, ...]  # (C,)
    normalise: tuple[Tensor, Tensor]  # mean (ch,), std (ch,) of pixels in 0..1
    size: tuple[int, int]  # height and width
    metrics: dict[str, Any]
    config: dict[str, Any]
    note: str

    def predict(self, image: Any) -> Guess:
        """Classify one image.

        Args:
            image: a file's path (decoded as `lt_lib.data.ImageFiles` does: shorter side resized, centre
                cropped), or pixels (H, W), (H, W, 1 or 3) or a tensor (ch, H, W), uint8 or floats in 0..1, of
                the card's size.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no image, or pixels of another shape or type.
        """
        channels = len(self.normalise[0])
        pixels = self._decoded(Path(image), channels) if isinstance(image, str | Path) else _pixels(image)
        if tuple(pixels.shape) != (channels, *self.size):
            raise ValueError(
                f"`image` must be {channels} x {self.size[0]} x {self.size[1]} (channels, height, width); "
                f"found {tuple(pixels.shape)}. Resize it, or pass the path of its file."
            )
        mean, std = (value.view(-1, 1, 1) for value in self.normalise)
        kind = next((p.dtype for p in self.model.parameters()), torch.float32)
        with torch.no_grad():
            probabilities = self.model(((pixels - mean) / std)[None].to(kind))[0].float().softmax(0)
        label = int(probabilities.argmax())
        return Guess(self.class_names[label], label, probabilities)

    def _decoded(self, path: Path, channels: int) -> Tensor:
        if self.size[0] != self.size[1]:
            raise ValueError(
                f"Files are cropped to squares, but this network takes {self.size[0]} x {self.size[1]} "
                "pixels; pass the pixels instead of a path."
            )
        path = path.expanduser().absolute()
        return ImageFiles(path.parent, [path.name], self.size[0], channels)[0] / 255


def save_card(
    folder: str | Path,
    model: nn.Module,
    class_names: Sequence[str],
    normalise: tuple[Any, Any],
    size: tuple[int, int],
    net: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    note: str = "",
) -> Path:
    """Write a network's weights and its card into `folder`, and return the card's path.

    A pair that is already there is replaced; other files are left alone.

    Args:
        folder: made if it is not there.
        model: images -> logits (B, C). It stays as it is.
        class_names: (C,) by label.
        normalise: (mean (ch,), std (ch,)) of pixels in 0..1, as it was trained.
        size: height and width of its images.
        net: fields of `lt_lib.nets.NetConfig` by which `load_card` builds it again; a head that was edited
            after training is built again, too. None for a network of one's own, which `load_card` is given.
        metrics: in JSON types, such as `Run.metrics`.
        config: of the training, in JSON types, such as `RunConfig.to_dict()`.
        note: what a user should know.

    Raises:
        ValueError: a value that JSON cannot hold, `net` builds another network, or a number of channels or
            classes that does not fit.
        OSError: the folder cannot be written; an earlier card in it is still whole then.
    """
    mean, std = (torch.as_tensor(value, dtype=torch.float32).reshape(-1) for value in normalise)
    names = [str(name) for name in class_names]
    weights = {n: v.detach().cpu().contiguous().clone() for n, v in model.state_dict().items()}
    network = None if net is None else network_entry(model, dict(net), len(names), len(mean), weights)
    content = safetensors.torch.save(weights)
    entries: dict[str, Any] = {
        "format": FORMAT,
        "classes": names,
        "channels": len(mean),
        "size": [int(side) for side in size],
        "normalise": {"mean": mean.tolist(), "std": std.tolist(), "pixels": "0..1"},
        "network": network,
        "metrics": dict(metrics or {}),
        "config": dict(config or {}),
        "note": note,
        "made": {"lt_lib": __version__, "torch": torch.__version__},
    }
    folder = Path(folder).expanduser()
    return _written(folder, entries, content)


def save_run(
    folder: str | Path,
    run: Run,
    model: nn.Module | None = None,
    metrics: Mapping[str, Any] | None = None,
    note: str = "",
) -> Path:
    """Write the network of a stored run, or the edited `model` in its place; see `save_card`.

    Of the path of a reader's own data the card keeps the last name alone.

    Args:
        folder: made if it is not there.
        run: the run.
        model: its network after an edit; None for the network as it was trained.
        metrics: None takes the run's, for an edited network nothing.
        note: what a user should know.

    Raises:
        ValueError: `model` is not the run's network with other weights, or another linear head.
        OSError: the folder cannot be written; an earlier card in it is still whole then.
    """
    split, network = run.config.split(), run.load_model() if model is None else model
    measured = metrics if metrics is not None else run.metrics if model is None else {}
    config = run.config.to_dict()
    kind, colon, path = config["data"]["name"].partition(":")
    config["data"] |= {"name": kind + colon + Path(path).name, "root": None}
    return save_card(
        folder,
        network,
        split.class_names,
        normalisation(split.train),
        (int(split.train.images.shape[2]), int(split.train.images.shape[3])),
        {"extras": extras_name(network), **run.config.net},
        measured,
        config,
        note,
    )


def load_card(folder: str | Path, model: nn.Module | None = None) -> Card:
    """Read a folder that `save_card` wrote; the data that the network was trained on are not needed.

    Args:
        folder: with the card and its weights.
        model: a network of one's own, as it was built for the training; changed in place. Leave it out for
            the networks of this library.

    Raises:
        FileNotFoundError: there is no card, or its weights are gone.
        ValueError: the card is damaged or newer than this library, the weights are not those that were
            written, or `model` is missing or does not fit.
    """
    path = Path(folder).expanduser() / CARD
    entries = read_entries(path)
    file = path.parent / Path(entries["weights"]).name  # within the folder, whatever the card says
    if not file.is_file():
        raise FileNotFoundError(f"`{path}` needs its weights `{file.name}` beside it; found none. {HERE}")
    if sha256(file) != entries["sha256"]:
        raise ValueError(f"`{file}` is not as it was written: its checksum differs from the card's. {HERE}")
    names, network = tuple(entries["classes"]), entries["network"]
    if model is None:
        if network is None:
            raise ValueError(
                f"`{path}` is of a network that this library cannot build. Build it as it was for the "
                "training, and pass it as `model`."
            )
        model = built(network, len(names), entries["channels"])
    load_checkpoint(model, file)
    mean, std = (torch.tensor(entries["normalise"][key]) for key in ("mean", "std"))
    height, width = entries["size"]
    rest = (entries.get("metrics", {}), entries.get("config", {}), entries.get("note", ""))
    return Card(model.eval(), names, (mean, std), (height, width), *rest)


def _written(folder: Path, entries: dict[str, Any], content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    name = f"weights.{digest[:12]}.safetensors"
    try:
        text = json.dumps(
            {**entries, "weights": name, "sha256": digest}, indent=1, allow_nan=False, ensure_ascii=False
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"`metrics` and `config` must be in JSON types, without NaN; {error}.") from error
    try:
        replace(folder / name, content)
        replace(folder / CARD, (text + "\n").encode())
        for other in set(folder.glob("weights.????????????.safetensors")) - {folder / name}:
            other.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"The folder `{folder}` cannot be written ({reason}). Choose another one.") from error
    return folder / CARD


def _pixels(image: Any) -> Tensor:
    """Return (ch, H, W) float32 in 0..1."""
    array = np.asarray(image)
    if not isinstance(image, Tensor):  # a tensor has its channels first already
        array = array[..., None] if array.ndim == 2 else array
        array = array.transpose(2, 0, 1) if array.ndim == 3 else array
    good = array.size and (
        array.dtype == np.uint8 or (np.issubdtype(array.dtype, np.floating) and np.isfinite(array).all())
    )
    if array.ndim != 3 or not good or (array.dtype != np.uint8 and (array.min() < 0 or array.max() > 1)):
        raise ValueError(
            f"`image` must be a path, or pixels of one image in uint8 or as floats in 0..1; found shape "
            f"{np.shape(image)} of {array.dtype}. Divide by 255, or convert it with `.astype(np.uint8)`."
        )
    pixels = torch.from_numpy(np.array(array, dtype=np.float32))
    return pixels / 255 if array.dtype == np.uint8 else pixels
