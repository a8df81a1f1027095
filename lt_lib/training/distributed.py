"""Several processes for one training, started by torchrun: gloo on CPUs, NCCL on CUDA.

The settings are those of one process: `batch` is the batch of all processes together, order and augmentation
depend on (seed, epoch) alone, and the results are those of one process to rounding.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lt_lib._checks import check_choice
from lt_lib._processes import Processes, current, together
from lt_lib.training.evaluate import Predictions, evaluate
from lt_lib.training.pixels import Images

BATCH_NORMS = ("global", "local")
_LOOPBACK = "127.0.0.1"


@contextmanager
def processes(
    batch_norm: str = "global", init_method: str = "env://", timeout: float = 600.0
) -> Iterator[Processes]:
    """Within the block, let the processes that torchrun started train and evaluate together.

    Without torchrun, or with one process, it does nothing, so that a script serves both. Every process runs
    the same script with the same arguments; `lt_lib.training.train` splits each batch, callbacks are called
    in every process, and whatever writes should ask for `.first`::

        with processes() as team:
            train(model, loss, part, config, seed, normalise)
            if team.first:
                safetensors.torch.save_model(model, "model.safetensors")

    Where all processes are on this machine they meet and talk on the loopback interface alone, unless the
    variables `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` name another. torchrun's own meeting place listens
    on every interface; with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` and `--rdzv-conf=store_type=file` there is
    none. Random layers (dropout) draw in each process for its own rows, so that networks with them are not
    those of one process.

    Args:
        batch_norm: "global": mean and variance over the rows of all processes, as one process has them;
            "local": over the rows of each, as under `DistributedDataParallel`, with the running statistics
            of the first process. The latter trains another objective: noisier statistics.
        init_method: where processes meet, as in `torch.distributed.init_process_group`.
        timeout: seconds that a process waits for the others before it gives up.

    Raises:
        ValueError: `batch_norm` is unknown, or there are more processes than CUDA devices to use.
    """
    check_choice(batch_norm, BATCH_NORMS, "batch_norm")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not current().alone:
        yield current()
        return
    rank, patience = int(os.environ["RANK"]), timedelta(seconds=timeout)
    with _loopback(size):
        store = _own_store(rank, size, patience) if init_method == "env://" else None
        where: dict[str, Any] = {"init_method": init_method} if store is None else {"store": store}
        dist.init_process_group(_backend(), timeout=patience, world_size=size, rank=rank, **where)
    try:
        with together(Processes(rank, size, batch_norm)) as team:
            yield team
    finally:
        dist.destroy_process_group()


def evaluate_together(
    model: nn.Module, part: Images, normalise: tuple[Any, Any], **options: Any
) -> Predictions:
    """Return what `evaluate` returns, each process having computed its share; call it in every process.

    Shares are as they fall: no image is computed or counted twice. Every process has all predictions. They
    are those of one process up to the rounding of other batch sizes.

    Args:
        model: the same in every process.
        part: all images, the same in every process.
        normalise: as for `evaluate`.
        options: further arguments of `evaluate`.

    Raises:
        ValueError: as `evaluate`.
    """
    team, total = current(), len(part.labels)
    if team.alone:
        return evaluate(model, part, normalise, **options)
    share = team.share(total)
    start, stop = share.start, share.stop
    taken = slice(start, stop) if stop > start else slice(0, 1)  # too few images: one, not counted
    own = evaluate(model, _Taken(part, taken), normalise, **options)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    logits, features = (
        team.rows(values[: stop - start].to(device), total).cpu() for values in (own.logits, own.features)
    )
    return Predictions(logits, features, part.labels.cpu())


class _Taken:
    """Some images of a part, in memory or as files."""

    def __init__(self, part: Images, where: slice) -> None:
        images = part.images
        self.images = images[where] if isinstance(images, torch.Tensor) else images.take(_places(where))
        self.labels = part.labels[where]


def _places(where: slice) -> torch.Tensor:
    return torch.arange(where.start, where.stop)


def _backend() -> str:
    """Return gloo, and for CUDA tensors NCCL where every process of this machine can have a device."""
    wanted = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return "gloo"
    devices = torch.cuda.device_count()
    if devices < wanted:
        raise ValueError(
            f"torchrun started {wanted} processes on a machine with {devices} CUDA devices. Start at most "
            "one a device, or hide the devices with CUDA_VISIBLE_DEVICES='' to train on the CPU."
        )
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    return "cpu:gloo,cuda:nccl"


def _all_here(size: int) -> bool:
    """Say whether all processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == size


@contextmanager
def _loopback(size: int) -> Iterator[None]:
    """Bind gloo and NCCL to the loopback interface where all processes are on this machine."""
    found = [interface for _, interface in socket.if_nameindex() if interface.startswith("lo")]
    names = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in os.environ]
    if not (_all_here(size) and found):
        names = []
    os.environ.update(dict.fromkeys(names, found[0] if found else ""))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _own_store(rank: int, size: int, timeout: timedelta) -> dist.Store | None:
    """Return a meeting place on the loopback interface; None: the environment's own is to be used.

    PyTorch's own listens on every interface, unless it is given a socket.
    """
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun listens already
    if agent or os.name == "nt" or not _all_here(size) or "MASTER_PORT" not in os.environ:
        return None
    port = int(os.environ["MASTER_PORT"])
    listening: int | None = None
    if rank == 0:
        listening = socket.create_server((_LOOPBACK, port)).detach()  # the store closes it
    return dist.TCPStore(_LOOPBACK, port, size, rank == 0, timeout, master_listen_fd=listening)
