import pytest
import torch
from small_training import small_net, some_images

from lt_lib.training import TrainConfig
from lt_lib.training.optimisers import make_optimiser


def losses_of(net, step):
    pixels, labels = some_images().images.double() / 255, some_images().labels
    for number in range(12):
        net.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(pixels), labels).backward()
        step(0.1 / (number + 1))
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.0, "weight_decay": 0.0},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        {"optimiser": "adamw", "weight_decay": 0.05},
    ],
)
def test_parameters_follow_torch_optim(settings):
    config = TrainConfig(**settings)
    ours, theirs = small_net().double(), small_net().double()
    if config.optimiser == "adamw":
        reference = torch.optim.AdamW(theirs.parameters(), lr=1.0, weight_decay=config.weight_decay)
    else:
        reference = torch.optim.SGD(
            theirs.parameters(),
            1.0,
            config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
        )

    def step(lr):
        reference.param_groups[0]["lr"] = lr
        reference.step()

    expected = losses_of(theirs, step)
    assert torch.allclose(
        losses_of(ours, make_optimiser(ours, config).step), expected, rtol=1e-10, atol=1e-12
    )


def test_a_parameter_without_gradient_stays():
    net = small_net()
    optimiser = make_optimiser(net, TrainConfig(weight_decay=0.5))
    net.head(torch.ones(2, 4)).sum().backward()
    kept, moved = net.conv.weight.detach().clone(), net.head.weight.detach().clone()
    optimiser.step(0.1)
    assert torch.equal(net.conv.weight, kept)
    assert not torch.equal(net.head.weight, moved)
