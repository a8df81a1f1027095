"""One training step of several processes: each computes its rows of the batch, all see the outputs of all.

The network is split by rows, and the loss is not: logits (or features) are gathered, and every process
computes the same loss of the whole batch. So class losses, inferred weights, the gradient through them,
records, macro counts and diagnostics are those of one process with that batch, for every loss and every
option of it; `lt_lib._processes.gathered` has the derivation. B x C numbers travel a step, where 2 C sums
would do for inverse reweighting alone; both are few beside the gradient. All-reduced sums of classes would
also add up in another order than one process adds, and every loss would need its own.

Why not `DistributedDataParallel`: its mean over processes is right for the gather as well, but it allows
`forward` alone (a recipe may call `features` and `head`), must be told of parameters without a gradient, and
hides the bucket that one sum after `backward` makes plain. Its overlap of computing and sending is given up.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lt_lib._processes import Processes, gathered
from lt_lib.training.global_norm import global_batch_norm
from lt_lib.training.seeding import LAYERS, epoch_seed


class SplitNetwork:
    """A network of which this process computes its rows of a batch, and returns the rows of all.

    Takes the whole batch of B images, or V views of it joined, (V * B, ch, H, W), the first view first; each
    process computes the same images of every view. Everything but `features` and the call itself, such as the
    head, is the network's own and is computed on all rows by every process.

    Args:
        model: the network.
        team: the processes.
        size: B.
    """

    def __init__(self, model: Any, team: Processes, size: int) -> None:
        self._model, self._team, self._size = model, team, size

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (V * B, C), or whatever tensor the network returns."""
        return self._outputs(self._model, images)

    def features(self, images: Tensor) -> Tensor:
        """Return the features (V * B, d)."""
        return self._outputs(self._model.features, images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _outputs(self, call: Any, images: Tensor) -> Tensor:
        size, share, views = self._size, self._team.share(self._size), len(images) // self._size
        own = images[share] if views == 1 else images.unflatten(0, (views, size))[:, share].flatten(0, 1)
        norm = global_batch_norm(self._model, self._team) if self._team.batch_norm == "global" else None
        with norm or nullcontext(), own_randomness(self._team, own.device):
            outputs = call(own)
        if views == 1:
            return gathered(outputs, self._team, size)
        by_image = outputs.unflatten(0, (views, share.stop - share.start)).transpose(0, 1)
        return gathered(by_image.contiguous(), self._team, size).transpose(0, 1).flatten(0, 1)


@contextmanager
def own_randomness(team: Processes, device: torch.device) -> Iterator[None]:
    """Let random layers draw for this process's rows; the global streams stay in step over the processes."""
    seed = epoch_seed(int(torch.randint(2**62, ())), team.rank, LAYERS)
    cuda = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.random.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield


def split_network(model: nn.Module, team: Processes, size: int) -> Any:
    """Return what a recipe calls in place of `model` for batches of `size`; alone, `model` itself."""
    return model if team.alone else SplitNetwork(model, team, size)


def average_gradients(model: nn.Module, team: Processes) -> None:
    """Replace each `.grad` by its mean over the processes, in one sum for each dtype; alone, do nothing.

    The mean is the gradient of one process with the whole batch, see `lt_lib._processes.gathered`. The bits
    are the same in every process, so that the networks stay the same without being sent.
    """
    if team.alone:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for dtype in {gradient.dtype for gradient in gradients}:
        chosen = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in chosen])
        team.sum_(flat).div_(team.size)
        for gradient, part in zip(chosen, flat.split([g.numel() for g in chosen]), strict=True):
            gradient.copy_(part.view(gradient.shape))


def share_buffers(model: nn.Module, team: Processes) -> None:
    """Let every process have the first one's buffers, which differ under local batch normalisation."""
    if team.batch_norm == "local":
        team.from_first_(model.buffers())


def check_team(team: Processes, model: nn.Module, loss: nn.Module, settings: tuple[Any, ...]) -> None:
    """Refuse processes that would not train the same network, and a recipe that cannot be split.

    Args:
        team: the processes; alone, nothing is looked at.
        model: compared bit by bit between the processes, as are the buffers of `loss` and `settings`.
        loss: see there.
        settings: tensors, and things whose `repr` is the same in every process.

    Raises:
        ValueError: they differ, or the recipe is `meta`, which differentiates the network forwards.
    """
    if team.alone:
        return
    if any(getattr(module, "recipe", "") == "meta" for module in loss.modules()):
        raise ValueError(
            f"The recipe `meta` runs in one process; found {team.size}. It differentiates the network along "
            "a direction, which a gather cannot pass on. Train it without torchrun."
        )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    team.check_same("settings, seed and labels", settings, device)
    team.check_same("weights", [*model.state_dict().values(), *loss.state_dict().values()], device)
