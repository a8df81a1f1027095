"""Small problems whose curvature is known by other means."""

import importlib
import warnings

import torch
from torch import Tensor, nn
from torch.autograd import grad

from lt_lib.curvature import MatrixOperator


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def linear_net(inputs: int, outputs: int, seed: int = 0) -> nn.Linear:
    net = nn.Linear(inputs, outputs, bias=False).double()
    net.weight.data = 0.5 * normal(outputs, inputs, seed=seed)
    return net


class ConvNet(nn.Module):
    """Convolutions (strided, grouped, biased), BatchNorm after and before them, in-place ReLU and sum."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2)
        self.bn2 = nn.BatchNorm2d(4, affine=False)
        self.conv3 = nn.Conv2d(4, 4, (3, 1), padding="same", dilation=1)
        self.bn3 = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)))
        y = self.bn3(x)  # before the convolution: nothing to fold it into
        y = self.conv3(y)
        y += x
        return self.head(self.drop(torch.tanh(y).mean((2, 3))))


def conv_net(dtype: torch.dtype = torch.float64, classes: int = 4) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ConvNet(classes).to(dtype)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
    return net


def images(count: int, dtype: torch.dtype = torch.float64, size: int = 6) -> Tensor:
    return normal(count, 3, size, size, seed=1).to(dtype)


def labels(count: int, classes: int = 4) -> Tensor:
    return torch.randint(0, classes, (count,), generator=generator(2))


def dense(operator) -> Tensor:
    """Return the operator's matrix, column by column."""
    identity = torch.eye(operator.size, dtype=operator.dtype)
    return torch.stack([operator.matvec(row) for row in identity], 1)


def autograd_hessian(value: Tensor, parameters: list[Tensor]) -> Tensor:
    """Return the Hessian of a scalar by double backward of PyTorch's own operations, dense."""
    rows = []
    gradient = torch.cat([g.reshape(-1) for g in grad(value, parameters, create_graph=True)])
    for entry in gradient:
        row = grad(entry, parameters, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([r.reshape(-1) for r in row]))
    return torch.stack(rows)


def with_spectrum(values, dtype: torch.dtype = torch.float64, seed: int = 0) -> MatrixOperator:
    """Return a matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    q = torch.linalg.qr(normal(len(values), len(values), seed=seed))[0]
    matrix = (q * values) @ q.T
    return MatrixOperator(((matrix + matrix.T) / 2).to(dtype))


def curvlinops():
    """Import the other library; its dependencies, and torch's forward mode that it loads later, warn once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.func.jvp(lambda t: t, (torch.ones(1),), (torch.ones(1),))
        return importlib.import_module("curvlinops")
