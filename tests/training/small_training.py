from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Images:
    images: Tensor
    labels: Tensor


class SmallNet(nn.Module):
    """Convolution, batch normalisation, mean, linear: what every network here has, at 60 parameters."""

    def __init__(self, channels=1, classes=3):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, classes)

    def features(self, x):
        return torch.relu(self.bn(self.conv(x))).mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


def small_net(seed=0, **sizes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallNet(**sizes)


def some_images(n=33, channels=1, size=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (n, channels, size, size), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(n) % classes)


NORMALISE = (torch.tensor([0.5]), torch.tensor([0.25]))


def same(one, two):
    """Whether two state dicts hold the same bits."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class KeepStates:
    """A callback that keeps the state after each epoch, in `states`."""

    def __init__(self):
        self.states = {}

    def on_epoch_end(self, epoch, trainer):
        self.states[epoch] = trainer.state(epoch)
