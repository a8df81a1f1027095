"""Networks whose operations or modes would spoil a Hessian: right all the same, or refused in a sentence."""

import copy
from threading import Thread

import pytest
import torch
from small_curvature import autograd_hessian, dense, normal
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, hardsigmoid, log_softmax
from torch.nn.utils.parametrizations import weight_norm

from lt_lib.curvature import GaussNewtonOperator, HessianOperator, lanczos, vector_scaling_share

X, Y = normal(7, 6, seed=3), torch.arange(7) % 3


def reference(model: nn.Module, labels: Tensor = Y, loss=cross_entropy) -> Tensor:
    return autograd_hessian(loss(model(X), labels), list(model.parameters()))


class Squeezed(nn.Module):
    """Squeeze and excitation as in MobileNetV3, in place if asked."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.wide, self.gate, self.head = (nn.Linear(a, b).double() for a, b in ((6, 5), (5, 5), (5, 3)))
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.wide(x))
        return self.head(x * hardsigmoid(self.gate(x), self.inplace))


class Written(Squeezed):
    """The same by a clamp, for the dense reference."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.wide(x))
        return self.head(x * ((self.gate(x) + 3).clamp(0, 6) / 6))


class Bagged(nn.Module):
    """PyTorch cannot differentiate a bag of embeddings twice."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.bag(x)))


class Merging(nn.Module):
    """Low-rank adaptation that merges its factors into the weight when it is set to eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.w, self.a = nn.Parameter(torch.randn(3, 6).double()), nn.Parameter(torch.randn(1, 6).double())
        self.b, self.merged = nn.Parameter(torch.randn(3, 1).double()), False

    def train(self, mode: bool = True) -> "Merging":
        if mode == self.merged:
            self.w.data += (-1 if mode else 1) * self.b @ self.a
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.w if self.merged else self.w + self.b @ self.a).T


class Normed(nn.Module):
    """g v / ||v||, written out; parameters in the order of `weight_norm`'s."""

    def __init__(self, layer: nn.Linear, head: nn.Linear) -> None:
        super().__init__()
        self.bias, self.g, self.v = (
            nn.Parameter(p.detach().clone())
            for p in (
                layer.bias,
                layer.parametrizations.weight.original0,
                layer.parametrizations.weight.original1,
            )
        )
        self.head = copy.deepcopy(head)

    def forward(self, x: Tensor) -> Tensor:
        w = self.g * self.v / self.v.square().sum(1, keepdim=True).sqrt()
        return self.head(torch.tanh(x @ w.T + self.bias))


@pytest.mark.parametrize("method", ["retained", "recompute", "forward_over_reverse", "linearize"])
@pytest.mark.parametrize("inplace", [False, True])
def test_hard_sigmoids_are_differentiated_twice(method: str, inplace: bool) -> None:
    operator = HessianOperator(Squeezed(inplace), X, Y, method=method)
    torch.testing.assert_close(dense(operator), reference(Written()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["retained", "recompute", "forward_over_reverse", "linearize"])
def test_weight_norm_is_differentiated_rightly(method: str) -> None:
    torch.manual_seed(4)
    layer, head = weight_norm(nn.Linear(6, 4).double()), nn.Linear(4, 3).double()
    operator = HessianOperator(nn.Sequential(layer, nn.Tanh(), head), X, Y, method=method)
    expected = reference(Normed(layer, head))
    torch.testing.assert_close(dense(operator), expected, rtol=1e-10, atol=1e-12)


def test_what_cannot_be_differentiated_twice_is_named() -> None:
    bags = torch.arange(14).view(7, 2) % 9
    for method in ("retained", "recompute", "forward_over_reverse"):
        operator = HessianOperator(Bagged(), bags, Y, method=method)
        with pytest.raises(ValueError, match="cannot differentiate `embedding_bag"):
            operator.matvec(torch.ones(operator.size).double())


def test_modules_with_work_in_their_mode_keep_their_weights() -> None:
    model = Merging()
    before = copy.deepcopy(model.state_dict())
    operator = HessianOperator(model, X, Y)
    torch.testing.assert_close(dense(operator), reference(model))
    assert model.training
    assert not model.merged
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_that_writes_on_its_images_is_refused() -> None:
    images, x = X.clone(), X.clone()
    with pytest.raises(ValueError, match="changes its input in place"):
        HessianOperator(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3).double()), x, Y)
    assert torch.equal(images, x)


def test_batchmean_divides_by_the_images() -> None:
    class LogProbabilities(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return log_softmax(super().forward(x), 1)

    torch.manual_seed(5)
    model = LogProbabilities(6, 3).double()
    targets = normal(7, 3, seed=8).softmax(1)
    loss = nn.KLDivLoss(reduction="batchmean")
    found = dense(HessianOperator(model, X, targets, loss=loss))
    torch.testing.assert_close(found, reference(model, targets, loss))
    loss.reduction = "median"
    with pytest.raises(ValueError, match="`reduction` must be one of"):
        HessianOperator(model, X, targets, loss=loss)


def test_threads_leave_attention_as_it_was() -> None:
    switches = torch.backends.cuda
    before = switches.flash_sdp_enabled(), switches.mem_efficient_sdp_enabled()
    nets = [nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double() for _ in range(3)]
    found: dict[int, Tensor] = {}

    def solve(index: int) -> None:
        found[index] = lanczos(HessianOperator(nets[index], X, Y, method="recompute"), 2).values

    threads = [Thread(target=solve, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, net in enumerate(nets):
        exact = torch.linalg.eigvalsh(reference(net)).flip(0)[:2]
        torch.testing.assert_close(found[index], exact, rtol=1e-5, atol=0)
    assert (switches.flash_sdp_enabled(), switches.mem_efficient_sdp_enabled()) == before


def test_gauss_newton_and_scaling_take_hard_sigmoids() -> None:
    model = Squeezed()
    operator = GaussNewtonOperator(model, X, Y)
    written = dense(GaussNewtonOperator(Written(), X, Y, method="recompute"))
    torch.testing.assert_close(dense(operator), written, rtol=1e-10, atol=1e-12)
    directions = torch.eye(operator.size).double()[:2]
    found, expected = (vector_scaling_share(net, X, Y, directions) for net in (model, Written()))
    torch.testing.assert_close(found.sample, expected.sample)
