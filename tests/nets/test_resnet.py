import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lt_lib.nets import NetConfig, ResNet, build_net, resnet


def images(n: int = 4, channels: int = 3, size: int = 8) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(0))


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (32, 464_154)])
def test_published_parameter_counts(depth: int, count: int) -> None:
    assert parameters(resnet(depth, 16, 10)) == count


@pytest.mark.parametrize(("depth", "width", "channels"), [(8, 8, 1), (14, 3, 3), (20, 5, 1)])
def test_parameter_count_by_formula_and_layers(depth: int, width: int, channels: int) -> None:
    net = resnet(depth, width, 7, channels)
    n = (depth - 2) // 6
    sizes = [channels, *[width] * (2 * n + 1), *[2 * width] * 2 * n, *[4 * width] * 2 * n]
    convolutions = sum(9 * a * b for a, b in pairwise(sizes))
    assert parameters(net) == convolutions + 2 * sum(sizes[1:]) + 7 * 4 * width + 7
    layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) + 1 == depth  # and the head


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (1, 28)])
def test_shapes(channels: int, size: int) -> None:
    net = resnet(8, 4, 10, channels)
    x = images(2, channels, size)
    assert net.features(x).shape == (2, 16)
    assert net(x).shape == (2, 10)
    net.eval()
    torch.testing.assert_close(net(x), net.head(net.features(x)))


def test_option_a_shortcut_subsamples_and_pads_with_zeros() -> None:
    block = resnet(8, 4, 10).stage2[0].eval()
    nn.init.zeros_(block.bn2.weight)  # the residual branch is silent: only the shortcut is left
    x = images(2, 4).abs()
    out = block(x)
    assert out.shape == (2, 8, 4, 4)
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2])
    assert not bool(out[:, :2].any() | out[:, 6:].any())


def test_initial_weights_have_he_variance() -> None:
    for module in resnet(20, 16, 10).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            fan = module.weight[0].numel()
            assert module.weight.detach().std().item() == pytest.approx(math.sqrt(2 / fan), rel=0.05)


def test_batchnorm_modes() -> None:
    net, x = resnet(8, 4, 10), images(16)
    before = {name: b.clone() for name, b in net.named_buffers()}
    net.eval()
    one = net(x[:1])
    torch.testing.assert_close(net(x)[:1], one)  # in eval mode an image does not see its batch
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    net.train()
    net(x)
    assert all(not torch.equal(b, before[name]) for name, b in net.named_buffers())


@pytest.mark.parametrize("head", ["linear", "cosine", "etf"])
def test_initialised_by_the_seed_alone(head: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_net({"depth": 8, "width": 4, "head": head}, 5, 1, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = build_net(NetConfig(8, 4, head), 5, 1, seed=3).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    other = build_net(NetConfig(8, 4, head), 5, 1, seed=4).state_dict()
    assert not torch.equal(first["conv.weight"], other["conv.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_head_seed_fixes_the_frame_across_networks() -> None:
    config = {"depth": 8, "width": 4, "head": "etf", "head_seed": 0}
    a, b = (build_net(config, 5, 1, seed) for seed in (1, 2))
    assert torch.equal(a.head.weight_matrix(), b.head.weight_matrix())
    assert not torch.equal(a.conv.weight, b.conv.weight)


def test_saved_network_computes_the_same_logits() -> None:
    # guards P6
    net = build_net({"depth": 8, "width": 4, "head": "etf"}, 5, 3, seed=1).eval()
    copy = build_net({"depth": 8, "width": 4, "head": "etf"}, 5, 3, seed=2).eval()
    copy.load_state_dict(net.state_dict())
    assert torch.equal(net(images()), copy(images()))


def test_configured_options_reach_the_head() -> None:
    assert build_net({"head": "linear", "bias": False}, 5, 1, 0).head.bias_vector() is None
    norms = build_net({"head": "cosine", "scale": 16}, 5, 1, 0).head.weight_matrix().norm(dim=1)
    torch.testing.assert_close(norms, torch.full((5,), 16.0))


def test_gradients_and_second_derivatives_exist_for_every_parameter() -> None:
    net = resnet(8, 2, 3, 1).double().eval()
    loss = net(images(2, 1).double()).logsumexp(1).sum()
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    square = torch.stack([g.square().sum() for g in grads]).sum()
    products = torch.autograd.grad(square, list(net.parameters()), allow_unused=True)
    assert sum(p is not None and bool(p.isfinite().all()) for p in products) >= len(grads) - 1


def test_floor_is_stated_when_features_are_too_few() -> None:
    assert resnet(8, 16, 100).nc2_floor == pytest.approx(0.62605, abs=5e-6)
    assert resnet(8, 32, 100).nc2_floor == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"depth": 18}, r"6n \+ 2 .*found 18\. The nearest is 20"),
        ({"depth": 2}, r"found 2\. The nearest is 8"),
        ({"depth": "8"}, "`depth` must be a whole number; found '8'"),
        ({"width": 0}, "at least 1"),
        ({"head": "cosin"}, "Did you mean `cosine`"),
        ({"widht": 4}, "`net` must be one of .*Did you mean `width`"),
        ({"scale": 3.0}, "`scale` does not apply to the head `linear`"),
        ({"head": "etf", "width": 1}, "at least 9 for a simplex ETF of 10 classes; found 4"),
    ],
)
def test_bad_configurations_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_net(arguments, 10, 1, 0)


def test_images_that_do_not_fit_are_refused() -> None:
    net: ResNet = resnet(8, 4, 10)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\).*found \(4, 1, 8, 8\).*`channels`"):
        net(images(channels=1))
    with pytest.raises(ValueError, match=r"found \(3, 8, 8\)"):
        net(images()[0])


@pytest.mark.parametrize("sizes", [{"classes": 2.0}, {"classes": True}, {"channels": 1.0}, {"seed": 0.5}])
def test_a_built_network_has_whole_sizes(sizes):
    with pytest.raises(ValueError, match=f"`{next(iter(sizes))}` must be a whole number; found"):
        build_net({}, **{"classes": 2, "channels": 1, "seed": 0, **sizes})
