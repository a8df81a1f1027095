"""Curvature of 11 images: of all in one process, and of 4 and 7 in two when this file is a script."""

import sys
from pathlib import Path

import safetensors.torch
import torch
from small_curvature import conv_net, normal
from torch import nn

from lt_lib.curvature import GaussNewtonOperator, HessianOperator, lanczos
from lt_lib.curvature.distributed import share_curvature
from lt_lib.losses import make_loss
from lt_lib.training import processes

IMAGES, LABELS = normal(11, 3, 6, 6), torch.arange(11) % 4
FIRST = 4  # images of the first process
WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0, 0.5], dtype=torch.float64))
KINDS = {
    "plain": (HessianOperator, None, None),
    "weighted": (HessianOperator, WEIGHTED, None),
    "summed": (HessianOperator, nn.CrossEntropyLoss(reduction="sum"), None),
    "by_seven": (HessianOperator, None, 7.0),
    "gauss_newton": (GaussNewtonOperator, None, None),
}


def measured(operator, name):
    """A product, and the three leading pairs of two kinds."""
    product = {"product": operator.matvec(normal(operator.size, seed=5)), "gradient": operator.gradient()}
    if name not in ("plain", "gauss_newton"):
        return product
    pairs = lanczos(operator, 3, tol=1e-8)
    found = {"values": pairs.values, "vectors": pairs.vectors, "residuals": pairs.residuals}
    return product | found


def refused(rank):
    """What is said to images that cannot be spread."""
    images, labels = (IMAGES[:FIRST], LABELS[:FIRST]) if rank == 0 else (IMAGES[FIRST:], LABELS[FIRST:])
    mixing = make_loss("inverse", [3, 3, 3, 2]).double()
    empty = conv_net(), images[: 2 * (1 - rank)], labels[: 2 * (1 - rank)]
    other = conv_net()
    with torch.no_grad():
        other.head.bias += rank
    said = {}
    for name, arguments in {
        "mixes": (conv_net(), images, labels, mixing),
        "images": empty,
        "weights": (other, images, labels),
    }.items():
        try:
            share_curvature(*arguments)
        except ValueError as error:
            said[name] = str(error)
    return said


def main(folder):
    found = {}
    with processes(init_method=f"file://{folder}/meet", timeout=120) as team:
        own = slice(0, FIRST) if team.first else slice(FIRST, None)
        for name, (kind, loss, normaliser) in KINDS.items():
            operator = share_curvature(conv_net(), IMAGES[own], LABELS[own], loss, normaliser, kind)
            found |= {f"{name}/{key}": value for key, value in measured(operator, name).items()}
        said = refused(team.rank)
    safetensors.torch.save_file(found, folder / f"{team.rank}.safetensors", said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
