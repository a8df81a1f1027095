"""Networks that this project did not make, taken apart into features and a head."""

import pytest
import torch
import torchvision
from torch import nn

from lt_lib.curvature import HessianOperator
from lt_lib.nets.own import find_classifier, own_network
from lt_lib.posthoc import adjusted_head, with_head
from lt_lib.training import evaluate

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ARCHS = {
    "resnet18": "fc",
    "mobilenet_v3_small": "classifier.3",
    "densenet121": "classifier",
    "vit_b_16": "heads.head",
    "convnext_tiny": "classifier.2",
}


def made(arch, **options):
    torch.manual_seed(0)
    sizes = {"image_size": 32, "num_classes": 5} if arch.startswith("vit") else {"num_classes": 5}
    return torchvision.models.get_model(arch, **sizes, **options)


@pytest.mark.parametrize("arch", ARCHS)
def test_torchvision_networks_are_taken_apart(arch):
    model = made(arch).eval()
    assert find_classifier(model) == find_classifier(model, IMAGES) == ARCHS[arch]
    own = own_network(model, IMAGES)
    with torch.no_grad():
        features = own.features(IMAGES)
        assert torch.equal(own.head(features), model(IMAGES))
        assert features.shape == (3, own.dim)
        # an edit of one is an edit of the other
        next(own.body.parameters()).add_(0.1)
        own.head.weight.mul_(2)
        assert torch.equal(own(IMAGES), model(IMAGES))
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in model.parameters())


class Pixels:
    images, labels = IMAGES, torch.tensor([0, 1, 4])


def test_diagnostics_and_edits_take_it_and_leave_the_network_alone():
    model = made("resnet18").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = own_network(model, IMAGES)
    seen = evaluate(own, Pixels, ((0.5,) * 3, (0.2,) * 3))
    assert seen.features.shape == (3, 512)
    shifted = with_head(own, adjusted_head(own.head, shift=torch.arange(5.0)))
    again = evaluate(shifted, Pixels, ((0.5,) * 3, (0.2,) * 3))
    assert torch.allclose(again.logits, seen.logits + torch.arange(5.0), atol=1e-5)
    product = HessianOperator(own, IMAGES, Pixels.labels, params="head.*").matvec(torch.ones(512 * 5 + 5))
    assert bool(torch.isfinite(product).all())
    assert model.training
    assert all(module.training for module in model.modules())
    assert isinstance(model.fc, nn.Linear)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_layer_is_found_by_what_it_puts_out_not_by_its_place():
    class Disordered(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 3), nn.Linear(3 * 32 * 32, 4)

        def forward(self, x):
            return self.last(self.first(x.flatten(1)))

    assert find_classifier(Disordered()) == "first"  # the documented guess
    assert find_classifier(Disordered(), IMAGES) == "last"
    assert own_network(Disordered(), IMAGES).classifier == "last"


def test_what_cannot_be_taken_apart_is_refused_in_words():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    with pytest.raises(ValueError, match="something follows the classifier"):
        own_network(nn.Sequential(flat, nn.Softmax(1)), IMAGES)
    with pytest.raises(ValueError, match="holds no linear layer"):
        find_classifier(nn.Conv2d(3, 3, 1))
    with pytest.raises(ValueError, match=r"must name a linear layer \(1\); found `0`, Flatten"):
        own_network(flat, IMAGES, "0")
    with pytest.raises(ValueError, match="must return logits"):
        own_network(nn.Sequential(nn.Linear(32, 3)), IMAGES)
    with pytest.raises(ValueError, match=r"Pass `model\.module`"):
        own_network(nn.DataParallel(flat), IMAGES)
