from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from lt_lib.nets import NetConfig, TorchvisionResNet, build_net, torchvision_resnet

THEIRS = {"resnet50": models.resnet50, "resnext50": models.resnext50_32x4d}


def images(size: int, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.fixture(scope="module")
def nets() -> dict[str, TorchvisionResNet]:
    return {arch: torchvision_resnet(arch, 1000, seed=3).eval() for arch in THEIRS}


@pytest.mark.parametrize(("arch", "published"), [("resnet50", 25_557_032), ("resnext50", 25_028_904)])
def test_layers_are_torchvisions(nets: dict[str, TorchvisionResNet], arch: str, published: int) -> None:
    theirs = THEIRS[arch](weights=None).eval()
    assert parameters(nets[arch]) == parameters(theirs) == published
    head = {"fc.weight": nets[arch].head.weight_matrix(), "fc.bias": nets[arch].head.bias_vector()}
    theirs.load_state_dict({**nets[arch].body.state_dict(), **head})
    x = images(64)
    with torch.no_grad():
        torch.testing.assert_close(nets[arch](x), theirs(x))


@pytest.mark.parametrize("arch", THEIRS)
def test_initial_weights_have_torchvisions_spread(nets: dict[str, TorchvisionResNet], arch: str) -> None:
    layers = [m for m in nets[arch].modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 5000]
    for layer in layers:
        fan_out = layer.weight.shape[0] * layer.weight[0, 0].numel()
        assert layer.weight.detach().std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    assert len(layers) > 40


@pytest.mark.parametrize(("stem", "size"), [("small", 32), ("imagenet", 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_shapes(stem: str, size: int, channels: int) -> None:
    net = build_net({"arch": "resnet50", "stem": stem, "head": "etf", "unit": True}, 7, channels, 0).eval()
    with torch.no_grad():
        features = net.features(images(size, channels))
        assert net(images(size, channels)).shape == (2, 7)
    assert features.shape == (2, net.dim) == (2, 2048)
    assert (net.classes, net.channels, net.nc2_floor) == (7, channels, 0)
    with pytest.raises(ValueError, match=rf"\(B, {channels}, H, W\)"):
        net(images(size, 2))


def test_small_stem_keeps_the_side_of_small_images() -> None:
    net = torchvision_resnet("resnext50", 10, stem="small")
    seen = []
    net.body.layer1.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].shape))
    with torch.no_grad():
        net(images(32))
    assert seen == [(2, 64, 32, 32)]
    # of the stem's parameters only the convolution differs: 3 x 3 instead of 7 x 7
    assert parameters(net) == 25_028_904 - 64 * 3 * (49 - 9) - (1000 - 10) * 2049


def test_floor_of_the_largest_benchmark_is_stated(nets: dict[str, TorchvisionResNet]) -> None:
    # guards P4: iNaturalist 2018 has 8142 classes, 2048 features cannot form their ETF
    assert nets["resnet50"].nc2_floor == 0
    assert torchvision_resnet("resnet50", 8142).nc2_floor == pytest.approx(0.99844, abs=5e-6)


def test_initialised_by_the_seed_alone() -> None:
    before = torch.get_rng_state()
    config = {"arch": "resnet50", "stem": "small"}
    first = build_net(config, 5, 1, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = build_net(config, 5, 1, seed=3).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    other = build_net(config, 5, 1, seed=4).state_dict()
    for name in ("body.conv1.weight", "body.layer4.2.conv3.weight", "head.weight"):
        assert not torch.equal(first[name], other[name])


def test_a_configuration_holds_what_its_architecture_has() -> None:
    assert NetConfig(arch="resnet50") == NetConfig(arch="resnet50", stem="imagenet")
    assert NetConfig(arch="resnet50").settings() == {
        "arch": "resnet50",
        "stem": "imagenet",
        "head": "linear",
    }
    assert NetConfig() == NetConfig(8, 8) != NetConfig(8, 16)
    assert NetConfig(**NetConfig(20, 16, "etf", unit=True).settings()) == NetConfig(20, 16, "etf", unit=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"arch": "resnet5"}, "`arch` must be one of .*Did you mean `resnet50`"),
        ({"arch": "resnet50", "depth": 32}, "`depth` applies to the architecture `cifar` only: `resnet50`"),
        (
            {"arch": "resnext50", "width": 16},
            "`width` applies to the architecture `cifar` only.*Leave it out",
        ),
        ({"arch": "resnet50", "stem": "tiny"}, "`stem` must be one of imagenet, small"),
        ({"stem": "small"}, "`stem` does not apply to the architecture `cifar`.*Leave it out"),
        ({"unit": True}, "`unit` does not apply to the head `linear`, which takes bias"),
        ({"head": "etf", "unit": 1}, "`unit` must be true or false; found 1"),
    ],
)
def test_bad_configurations_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_net(arguments, 10, 1, 0)


def test_too_many_classes_for_an_etf_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8141 for a simplex ETF of 8142 classes; found 2048"):
        torchvision_resnet("resnet50", 8142, head="etf")
