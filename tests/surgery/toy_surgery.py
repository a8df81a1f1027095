"""Small problems of surgery: a linear head whose every quantity is known, and a small network."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages

CLASSES = 4


def clusters(count: int, seed: int, classes: int = CLASSES, dim: int = 6, spread: float = 0.9):
    """Return images (n, dim) around one corner a class, and labels, as many of each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = torch.eye(classes, dim, dtype=torch.float64)
    images = centres[labels] + spread / 2 * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return images, labels


def biased_head(classes: int = CLASSES, dim: int = 6) -> nn.Linear:
    """Return the nearest-corner classifier, biased towards the first classes as long tails make it."""
    head = nn.Linear(dim, classes).double()
    with torch.no_grad():
        head.weight.copy_(4 * torch.eye(classes, dim))
        head.bias.copy_(torch.linspace(1.5, -1.5, classes))
    return head


def trained_net(dtype: torch.dtype = torch.float64, classes: int = CLASSES) -> nn.Sequential:
    """Return a small smooth network, trained on a long tail, with BatchNorm and dropout in train mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, classes)
        ).to(dtype)
        images, labels = clusters(400, seed=7, classes=classes)
        keep = torch.rand(400) < torch.tensor([1.0, 0.6, 0.3, 0.1, 0.1, 0.1])[labels]
        images, labels = images[keep].to(dtype), labels[keep]
        optimiser = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9)
        for _ in range(60):
            optimiser.zero_grad()
            cross_entropy(net(images), labels).backward()
            optimiser.step()
        optimiser.zero_grad()
    return net


def data(dtype: torch.dtype = torch.float64, count: int = 200) -> tuple[HessianImages, Calibration]:
    images, labels = clusters(64, seed=1)
    calibration, truth = clusters(count, seed=2)
    return HessianImages(images.to(dtype), labels), Calibration(calibration.to(dtype), truth, CLASSES)


def config(**over) -> SurgeryConfig:
    settings = {
        "iterations": 4,
        "radius": 0.1,
        "minimum": 0.01,
        "spikes": 3,
        "strong": 0.95,
        "method": "exact",
    }
    return SurgeryConfig(**settings | over)


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
