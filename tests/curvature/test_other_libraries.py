"""Eigenpairs of networks against curvlinops and SciPy's ARPACK."""

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from small_curvature import conv_net, curvlinops, images, labels
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from lt_lib.curvature import HessianOperator, lanczos, verify


def torchvision_net() -> ResNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4)
        net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 4)  # half the depth
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.5, 2)
    return net


def test_a_torchvision_net_agrees_with_other_libraries():
    net, x, y = torchvision_net(), images(4, torch.float32, size=12), labels(4)
    operator = HessianOperator(net, x, y, params=["conv1.*", "layer1.*", "layer2.*.weight", "fc.*"])
    ours = verify(operator, lanczos(operator, 3))
    assert bool(ours.converged.all())
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    chosen = [p for n, p in net.eval().named_parameters() if n in operator.names]
    other = curvlinops().HessianLinearOperator(
        net, nn.CrossEntropyLoss(), chosen, [(x, y)], check_deterministic=False
    )
    start = np.random.default_rng(0).standard_normal(operator.size).astype(np.float32)
    values = eigsh(other.to_scipy(), k=3, which="LA", tol=1e-4, v0=start, return_eigenvectors=False)
    torch.testing.assert_close(
        ours.values, torch.tensor(np.sort(values)[::-1].copy()).double(), rtol=2e-3, atol=0
    )


def test_a_small_net_agrees_with_arpack():
    operator = HessianOperator(conv_net(), images(12), labels(12))

    def product(v):
        return operator.matvec(torch.from_numpy(v.reshape(-1))).numpy()

    arpack = LinearOperator((operator.size,) * 2, matvec=product, dtype=np.float64)
    for which in ("LA", "SA", "LM"):
        values = eigsh(
            arpack, k=4, which=which, tol=1e-10, return_eigenvectors=False, v0=np.ones(operator.size)
        )
        order = np.argsort({"LA": -values, "SA": values, "LM": -abs(values)}[which])
        pairs = lanczos(operator, 4, tol=1e-6, which=which)
        torch.testing.assert_close(pairs.values, torch.from_numpy(values[order]), rtol=1e-5, atol=0)
