"""A network's view of some of its classes, against the network itself."""

import pytest
import torch
from torch import nn

from lt_lib.nets.some_classes import SomeClasses
from lt_lib.surgery import Calibration, HessianImages, SurgeryConfig, operate


@pytest.fixture
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(8, 5))


@pytest.fixture
def images():
    return torch.randn(40, 2, 4, generator=torch.Generator().manual_seed(1))


def test_kept_logits_are_those_of_the_network_and_labels_count_anew(net, images):
    labels = torch.tensor([4, 0, 3, 4])
    view = SomeClasses(net, labels)
    assert view.classes.tolist() == [0, 3, 4]
    assert torch.equal(view(images), net(images)[:, [0, 3, 4]])
    picked, numbers = view.pick(images[:6], torch.tensor([3, 1, 0, 2, 4, 3]))
    assert torch.equal(picked, images[[0, 2, 4, 5]])
    assert numbers.tolist() == [1, 0, 2, 1]


def test_weights_are_the_networks_own(net, images):
    view = SomeClasses(net, [0, 1])
    with torch.no_grad():
        net[1].bias[1] += 1
    assert torch.equal(view(images)[:, 1], net(images)[:, 1])
    assert {id(p) for p in view.parameters()} == {id(p) for p in net.parameters()}


def test_surgery_of_the_view_moves_the_network_though_a_class_has_no_calibration_image(net, images):
    labels = net(images).argmax(1)
    labels[::3] = torch.arange(40)[::3] % 5
    net.eval()
    seen = labels[:20]
    missing = int(seen[0])
    held = seen != missing
    view = SomeClasses(net, seen[held])
    assert missing not in view.classes.tolist()
    calibration = Calibration(*view.pick(images[:20], seen), len(view.classes))
    hessian = HessianImages(*view.pick(images[20:], labels[20:]))
    before = [p.detach().clone() for p in net.parameters()]
    config = SurgeryConfig(
        spikes=2, iterations=1, radius=0.5, strong=1.0, rollback_sigma=None, rollback_drop=None
    )
    done = operate(view, hessian, calibration, config)
    moved = [not torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True)]
    assert all(moved) is bool(done.trace[0].alpha.any())
    assert any(moved)
    done.restore()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_a_single_class_is_refused(net):
    with pytest.raises(ValueError, match=r"two classes or more.*found \[2\]"):
        SomeClasses(net, [2, 2])
