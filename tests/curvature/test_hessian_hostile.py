"""Models, images and labels that have no Hessian, or nearly none: a sentence, or the right operator."""

import pytest
import torch
from small_curvature import autograd_hessian, conv_net, dense, images, labels, normal
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from lt_lib.curvature import GaussNewtonOperator, HessianOperator

METHODS = pytest.mark.parametrize("method", ["retained", "recompute", "forward_over_reverse"])


class Head(nn.Module):
    """A linear layer on pixels, then any function of its logits."""

    def __init__(self, change=None) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(108, 4).double(), change

    def forward(self, x):
        z = self.linear(x.flatten(1))
        return z if self.change is None else self.change(z)


def holed() -> torch.Tensor:
    x = images(3)
    x[1, 0, 2, 2] = float("nan")
    return x


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": labels(3) + 9}, r"must be 0\.\.3"),
        ({"labels": torch.full((3,), -100)}, r"must be 0\.\.3"),
        ({"labels": labels(3).double()}, "whole numbers"),
        ({"labels": labels(3)[:, None]}, "one-dimensional"),
        ({"labels": labels(3) + 9, "loss": nn.CrossEntropyLoss(torch.ones(4).double())}, r"must be 0\.\.3"),
        ({"labels": [0, 1, 2]}, "must be tensors; found Tensor and list"),
        ({"images": images(3).numpy()}, "must be tensors; found ndarray"),
        ({"images": images(0), "labels": labels(0)}, "at least one"),
        ({"images": holed()}, r"`images` must be finite.*\(1, 0, 2, 2\)"),
        ({"model": Head(lambda z: {"logits": z})}, "found dict"),
        ({"model": Head(torch.sum)}, r"found Tensor of shape \(\)"),
        ({"model": Head(lambda z: z[:, 0])}, r"logits \(B, C\)"),
        ({"model": Head(dropout)}, "two outputs for one image"),
        ({"model": Head(lambda z: z + torch.randn_like(z))}, "two outputs for one image"),
        ({"model": nn.Sequential(nn.Flatten(), nn.LazyLinear(4))}, "Pass a batch through"),
        ({"model": torch.relu}, "must be a `torch.nn.Module`"),
        ({"params": 3}, "name pattern"),
        ({"micro_batch": 2.5}, "whole number"),
    ],
)
def test_what_has_no_hessian_gets_a_sentence(change, message):
    given = {"model": conv_net(), "images": images(3), "labels": labels(3)} | change
    state = torch.random.get_rng_state()
    with pytest.raises(ValueError, match=message):
        HessianOperator(**given)
    assert torch.equal(torch.random.get_rng_state(), state)


@METHODS
def test_no_later_change_of_the_model_reaches_an_operator_on_some_parameters(method):
    net, x = conv_net(), images(4)
    operator = HessianOperator(net, x, labels(4), params="head.*", method=method)
    v = normal(operator.size, seed=3)
    before = operator.matvec(v)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    torch.testing.assert_close(operator.matvec(v), before, rtol=1e-12, atol=0)


@METHODS
@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator])
def test_inference_mode_of_the_caller_changes_nothing(kind, method):
    operator = kind(conv_net(), images(4), labels(4), method=method)
    v = normal(operator.size, seed=3)
    with torch.inference_mode():
        inside = kind(conv_net(), images(4), labels(4), method=method)
        found = inside.matvec(v), operator.matvec(v)
        data = images(4), labels(4)
    expected = operator.matvec(v)
    for product in (*found, inside.matvec(v), kind(conv_net(), *data, method=method).matvec(v)):
        torch.testing.assert_close(product, expected, rtol=1e-10, atol=1e-12)


def test_labels_of_any_whole_kind_and_probabilities_of_classes_agree():
    net, x, y = conv_net(), images(4), labels(4)
    v = normal(HessianOperator(net, x, y).size, seed=3)
    expected = HessianOperator(net, x, y).matvec(v)
    for given in (y.int(), y.to(torch.uint8), nn.functional.one_hot(y, 4).double()):
        torch.testing.assert_close(HessianOperator(net, x, given).matvec(v), expected)
    ignoring = torch.cat([y, torch.tensor([-100])])
    padded = HessianOperator(net, images(5), ignoring, loss=nn.CrossEntropyLoss())
    assert padded.normaliser == 4
    torch.testing.assert_close(padded.matvec(v), HessianOperator(net, images(5)[:4], y).matvec(v))


def test_images_of_a_tensor_subclass_are_images():
    class Image(torch.Tensor):
        pass

    net, x, y = conv_net(), images(4), labels(4)
    v = normal(HessianOperator(net, x, y).size, seed=3)
    found = HessianOperator(net, x.as_subclass(Image), y).matvec(v)
    torch.testing.assert_close(found, HessianOperator(net, x, y).matvec(v))


@METHODS
def test_shared_weights_have_the_hessian_of_one_parameter(method):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4).double(), nn.Linear(4, 4, bias=False).double()
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    net, x, y = Tied(), normal(6, 4), labels(6)
    operator = HessianOperator(net, x, y, method=method)
    assert operator.names == ("first.weight", "first.bias")
    expected = autograd_hessian(cross_entropy(net(x), y), list(net.parameters()))
    torch.testing.assert_close(dense(operator), expected, rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match="first name"):
        HessianOperator(net, x, y, params="second.*")


def test_a_loss_without_a_gradient_is_refused():
    def constant(outputs, labels):
        return torch.ones(len(outputs)).double()

    def right(outputs, labels):
        return (outputs.argmax(1) == labels).double()

    for kind in (HessianOperator, GaussNewtonOperator):
        for loss in (constant, right, lambda z, y: z.detach().sum(1)):
            operator = kind(conv_net(), images(3), labels(3), loss=loss, method="recompute")
            with pytest.raises(ValueError, match="`loss` has no gradient"):
                operator.matvec(torch.ones(operator.size).double())
