"""Hessian products against closed forms, dense autograd and another library."""

from functools import cache

import numpy as np
import pytest
import torch
from small_curvature import (
    autograd_hessian,
    conv_net,
    curvlinops,
    dense,
    images,
    labels,
    linear_net,
    normal,
)
from torch import nn
from torch.nn.functional import cross_entropy

from lt_lib.curvature import GaussNewtonOperator, HessianOperator
from lt_lib.losses import make_loss

METHODS = "retained", "recompute", "forward_over_reverse", "linearize"


def test_linear_regression_has_twice_the_gram_matrix():
    x, y = normal(7, 3), normal(7, 2, seed=1)
    operator = HessianOperator(linear_net(3, 2), x, y, loss=nn.MSELoss())
    expected = (
        torch.kron(torch.eye(2, dtype=torch.float64), 2 * x.T @ x / 7) / 2
    )  # the mean runs over 14 terms
    torch.testing.assert_close(dense(operator), expected, rtol=1e-8, atol=1e-12)


def test_logistic_regression():
    x, y = normal(9, 4), (normal(9, 1, seed=1) > 0).double()
    net = linear_net(4, 1)
    p = torch.sigmoid(x @ net.weight.detach().T).squeeze(1)
    operator = HessianOperator(net, x, y, loss=nn.BCEWithLogitsLoss())
    torch.testing.assert_close(dense(operator), (x.T * (p * (1 - p))) @ x / 9, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator])
def test_softmax_regression_is_a_sum_of_kronecker_products(kind):
    x, y, net = normal(8, 3), labels(8), linear_net(3, 4)
    p = torch.softmax(x @ net.weight.detach().T, 1)
    expected = sum(
        torch.kron(torch.diag(q) - torch.outer(q, q), torch.outer(h, h)) for q, h in zip(p, x, strict=True)
    )
    torch.testing.assert_close(dense(kind(net, x, y)), expected / 8, rtol=1e-8, atol=1e-12)


@cache
def expected_hessian():
    net = conv_net().eval()
    return autograd_hessian(cross_entropy(net(images(5)), labels(5)), list(net.parameters()))


@pytest.mark.parametrize("method", METHODS)
def test_a_convolutional_net_agrees_with_dense_autograd(method):
    net, x, y = conv_net(), images(5), labels(5)
    operator = HessianOperator(net, x, y, method=method, micro_batch=None if method == "linearize" else 3)
    v = normal(operator.size, 3, seed=3)
    torch.testing.assert_close(operator.matmat(v), expected_hessian() @ v, rtol=1e-8, atol=1e-10)


class _Attention(nn.Module):
    """Four tokens an image, one layer of attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize("method", METHODS)
def test_attention_has_a_hessian(method):
    net, x, y = _Attention().double().eval(), normal(5, 4, 6), torch.tensor([0, 1, 2, 0, 1])
    v = normal(sum(p.numel() for p in net.parameters()), seed=3)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = autograd_hessian(cross_entropy(net(x), y), list(net.parameters())) @ v
    operator = HessianOperator(net, x, y, method=method)
    torch.testing.assert_close(operator.matvec(v), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_its_gradient_is_that_of_autograd_and_the_products_stay(method):
    net, x, y = conv_net(), images(5), labels(5)
    operator = HessianOperator(net, x, y, method=method, micro_batch=None if method == "linearize" else 2)
    plain = torch.autograd.grad(cross_entropy(net.eval()(x), y), list(net.parameters()))
    expected = torch.cat([g.reshape(-1) for g in plain])
    for _ in range(2):  # what it returns is a copy
        torch.testing.assert_close(operator.gradient(), expected, rtol=1e-10, atol=1e-12)
        operator.gradient().zero_()
    torch.testing.assert_close(GaussNewtonOperator(net, x, y).gradient(), expected, rtol=1e-10, atol=1e-12)
    v = normal(operator.size, 1, seed=3)
    torch.testing.assert_close(operator.matmat(v), expected_hessian() @ v, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["retained", "recompute", "forward_over_reverse"])
def test_gauss_newton_of_a_convolutional_net_agrees_with_its_jacobian(method):
    net, x, y = conv_net(), images(4), labels(4)
    operator = GaussNewtonOperator(net, x, y, method=method, micro_batch=3)
    net.eval()
    z = net(x)
    rows = [torch.autograd.grad(entry, list(net.parameters()), retain_graph=True) for entry in z.flatten()]
    jacobian = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows]).view(4, 4, -1)
    p = torch.softmax(z.detach(), 1)
    bend = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    v = normal(operator.size, seed=3)
    expected = torch.einsum("ncp,nck,nk->p", jacobian, bend, jacobian @ v) / 4
    torch.testing.assert_close(operator.matvec(v), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(HessianOperator, "HessianLinearOperator"), (GaussNewtonOperator, "GGNLinearOperator")],
)
def test_another_library_gives_the_same_product(ours, theirs):
    other_operator = getattr(curvlinops(), theirs)
    net, x, y = conv_net(), images(6), labels(6)
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    operator = ours(net, x, y)
    v = normal(operator.size, seed=3)
    parameters = list(net.eval().parameters())
    other = other_operator(net, nn.CrossEntropyLoss(), parameters, [(x, y)], check_deterministic=False)
    torch.testing.assert_close(operator.matvec(v), other @ v, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", ["plain", "weighted module", "inverse_frequency", "smoothed"])
def test_no_split_of_the_data_changes_a_weighted_hessian(loss):  # guards D13, D43, P1, P2
    net, x, y = conv_net(), images(10), labels(10)
    weight = torch.tensor([5.0, 1.0, 0.2, 3.0], dtype=torch.float64)
    given = {
        "plain": nn.CrossEntropyLoss(),
        "weighted module": nn.CrossEntropyLoss(weight),
        "inverse_frequency": make_loss("inverse_frequency", [50, 20, 5, 2]),
        "smoothed": nn.CrossEntropyLoss(weight, label_smoothing=0.1),
    }[loss]
    v = normal(HessianOperator(net, x, y).size, seed=3)
    net.eval()
    gradient = torch.autograd.grad(given(net(x), y), list(net.parameters()), create_graph=True)
    parts = torch.autograd.grad(
        gradient, list(net.parameters()), list(HessianOperator(net, x, y).split(v).values())
    )
    expected = torch.cat([part.reshape(-1) for part in parts])
    for size in (None, 5, 8, 3, 1):
        found = HessianOperator(net, x, y, loss=given, micro_batch=size, method="retained").matvec(v)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-10)


def test_frozen_backbone_and_unused_parameters():  # guards D32
    net, x, y = conv_net(), images(4), labels(4)
    net.unused = nn.Linear(2, 2).double()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith(("head", "unused")))
    operator = HessianOperator(net, x, y)
    assert operator.names == ("head.weight", "head.bias", "unused.weight", "unused.bias")
    matrix = dense(operator)
    assert not matrix[20:].any()
    assert not matrix[:, 20:].any()
    net.eval()
    parameters = [net.head.weight, net.head.bias]
    expected = autograd_hessian(cross_entropy(net(x), y), parameters)
    torch.testing.assert_close(matrix[:20, :20], expected, rtol=1e-8, atol=1e-12)


def test_a_pattern_selects_a_block_of_the_whole_frozen_or_not():
    net, x, y = conv_net(), images(5), labels(5)
    net.conv2.weight.requires_grad_(False)
    block = HessianOperator(net, x, y, params=["conv2.*", "bn1.weight"])
    assert block.names == ("bn1.weight", "conv2.weight", "conv2.bias")
    ends = np.cumsum([p.numel() for p in net.parameters()])
    place = dict(zip([n for n, _ in net.named_parameters()], ends, strict=True))
    at = torch.cat(
        [torch.arange(place[n] - p.numel(), place[n]) for n, p in net.named_parameters() if n in block.names]
    )
    torch.testing.assert_close(dense(block), expected_hessian()[at][:, at], rtol=1e-8, atol=1e-12)


def test_a_block_in_which_the_loss_is_linear_is_zero():
    def first_output(outputs, labels):
        return outputs[:, 0]

    operator = HessianOperator(linear_net(3, 2), normal(5, 3), labels(5), loss=first_output)
    assert not dense(operator).any()
    net = conv_net()
    head = HessianOperator(net, images(3), labels(3), loss=first_output, params="head.*")
    assert not head.matvec(torch.ones(head.size, dtype=torch.float64)).any()


def test_a_single_image():
    net, x, y = conv_net(), images(1), labels(1)
    operator = HessianOperator(net, x, y)
    parameters = list(net.eval().parameters())
    v = normal(operator.size, seed=3)
    gradient = torch.autograd.grad(cross_entropy(net(x), y), parameters, create_graph=True)
    parts = torch.autograd.grad(gradient, parameters, list(operator.split(v).values()))
    expected = torch.cat([part.reshape(-1) for part in parts])
    torch.testing.assert_close(operator.matvec(v), expected, rtol=1e-8, atol=1e-12)


def test_an_own_normaliser_rescales():
    net, x, y = linear_net(3, 4), normal(6, 3), labels(6)
    mean, total = HessianOperator(net, x, y), HessianOperator(net, x, y, normaliser=1.0)
    assert mean.normaliser == 6
    torch.testing.assert_close(dense(total), 6 * dense(mean))
    assert HessianOperator(net, x, y, loss=nn.CrossEntropyLoss(reduction="sum")).normaliser == 1


def test_a_view_across_channels_keeps_the_usual_memory_format():
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 2, 3), nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.conv(x).view(len(x), -1))

    net, x, y = Viewing().double(), images(3), labels(3)
    operator = HessianOperator(net, x, y, channels_last=True)
    expected = autograd_hessian(cross_entropy(net(x), y), list(net.parameters()))
    v = normal(operator.size, seed=3)
    torch.testing.assert_close(operator.matvec(v), expected @ v, rtol=1e-8, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu():
    net, x, y = conv_net(torch.float32), images(5, torch.float32), labels(5)
    v = normal(HessianOperator(net, x, y).size, seed=3).float()
    here = HessianOperator(net, x, y).matvec(v)
    there = HessianOperator(net.cuda(), x, y).matvec(v).cpu()
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4 * float(here.abs().max()))
