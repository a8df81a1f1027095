"""A checkpoint of somebody else's making: a torchvision network, trained in plain PyTorch.

Nothing of `lt_lib` is used here, and what is saved is what the usual training script leaves: a state dict
under a key of its own, with the prefixes of DataParallel.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import ShuffleNetV2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as torchvision's scripts have them


def network(classes: int) -> ShuffleNetV2:
    """Return torchvision's ShuffleNetV2, narrow and shallow, with random weights."""
    return ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, 128], num_classes=classes)


def prepare(images: Tensor, size: int = 32) -> Tensor:
    """Return pixels (n, 1 or 3, H, W), bytes or floats in 0..1, as such a network takes them.

    They are float32 in three channels, `size` pixels a side, normalised by ImageNet's mean and deviation.
    """
    pixels = images.float() / (1 if images.is_floating_point() else 255)
    pixels = pixels.expand(-1, 3, -1, -1)
    if pixels.shape[-1] != size or pixels.shape[-2] != size:
        pixels = nn.functional.interpolate(pixels, (size, size), mode="bilinear", align_corners=False)
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def write_checkpoint(
    file: str | Path, images: Tensor, labels: Tensor, classes: int, epochs: int = 15
) -> Path:
    """Train such a network by Adam on cross-entropy, as a stranger would; return its checkpoint's path."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = network(classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
        pixels = prepare(images)
        for _ in range(epochs):
            for rows in torch.randperm(len(labels)).split(32):
                if len(rows) > 1:  # batch normalisation asks for two
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(model(pixels[rows]), labels[rows]).backward()
                    optimiser.step()
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    parallel = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({"epoch": epochs, "state_dict": parallel}, path)
    return path
