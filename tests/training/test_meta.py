import copy

import pytest
import torch
from small_training import NORMALISE, Images, small_net, some_images
from torch import nn
from torch.func import functional_call

from lt_lib.losses import make_loss
from lt_lib.nets import build_net
from lt_lib.training import TrainConfig, meta_weights, train

GENERATOR = torch.Generator().manual_seed(0)
IMAGES, META = (torch.randn(n, 1, 6, 6, generator=GENERATOR, dtype=torch.float64) for n in (9, 7))
LABELS, META_LABELS = (torch.randint(3, (n,), generator=GENERATOR) for n in (9, 7))


def net64():
    return small_net().double().train()


def losses(net, parameters, images, labels):
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    logits = functional_call(net, {**parameters, **buffers}, (images,))
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def stepped(net, eps, rate=0.3):
    """Mean meta loss after the virtual step at weights `eps` (B,)."""
    theta = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    total = (eps * losses(net, theta, IMAGES, LABELS)).sum()
    slopes = torch.autograd.grad(total, list(theta.values()))
    moved = {name: (p - rate * g).detach() for (name, p), g in zip(theta.items(), slopes, strict=True)}
    return float(losses(net, moved, META, META_LABELS).mean())


@pytest.mark.parametrize("training", [True, False])
def test_weights_are_the_clipped_derivative_of_the_meta_loss(training):
    """By finite differences of an explicit virtual step."""
    net = net64().train(training)
    size, slopes = 1e-4, []
    for i in range(9):
        eps = torch.zeros(9, dtype=torch.float64)
        eps[i] = size
        slopes.append((stepped(net, eps) - stepped(net, -eps)) / (2 * size))
    expected = torch.tensor(slopes).neg().clamp(min=0)
    assert 0 < int((expected == 0).sum()) < 9  # some are clipped, not all
    found = meta_weights(net, IMAGES, LABELS, META, META_LABELS)
    assert found.dtype == torch.float64
    assert torch.allclose(found, (expected / expected.sum()).double(), rtol=1e-5, atol=1e-7)
    assert float(found.sum()) == pytest.approx(1)


def test_the_model_is_left_as_it_was():
    net = net64()
    net(IMAGES).sum().backward()
    before = copy.deepcopy(net.state_dict())
    gradients = [p.grad.clone() for p in net.parameters()]
    with torch.no_grad():
        meta_weights(net, IMAGES, LABELS, META, META_LABELS)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), gradients, strict=True))
    assert net.training


def test_no_agreement_gives_no_weight():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False)).double()
    weights = meta_weights(net, META[:1], META_LABELS[:1], -META[:1], META_LABELS[:1])
    assert weights.tolist() == [0.0]
    assert meta_weights(net, META[:1], META_LABELS[:1], META[:1], META_LABELS[:1]).tolist() == [1.0]


def test_frozen_parameters_take_no_part():
    net = net64()
    whole = meta_weights(net, IMAGES, LABELS, META, META_LABELS)
    net.conv.requires_grad_(False)
    part = meta_weights(net, IMAGES, LABELS, META, META_LABELS)
    assert not torch.allclose(whole, part, atol=1e-3)


def test_the_loss_is_the_weighted_sum_of_cross_entropy():
    logits = torch.randn(4, 3, generator=GENERATOR)
    labels, weights = torch.tensor([0, 1, 2, 1]), torch.tensor([0.5, 0.0, 0.2, 0.3])
    plain = nn.functional.cross_entropy(logits, labels, reduction="none")
    loss = make_loss("meta", [5, 4, 3])
    assert float(loss(logits, labels, weights)) == pytest.approx(float(weights @ plain), rel=1e-6)
    assert loss.recipe == "meta"
    with pytest.raises(ValueError, match=r"needs a weight for each of the 4 samples .* `meta` of"):
        loss(logits, labels)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.6, 0.5, -0.1, 0.0], "-0.1 as the smallest and the sum 1"),
        ([1.0] * 4, "1 as the smallest and the sum 4"),
        ([1, 0, 0, 0], r"found shape \(4,\) of torch.int64"),
        ([[0.25] * 4], r"found shape \(1, 4\)"),
    ],
)
def test_weights_that_are_none_are_named(weights, words):
    with pytest.raises(ValueError, match=words):
        make_loss("meta", [5, 4, 3])(torch.zeros(4, 3), torch.tensor([0, 1, 2, 1]), torch.tensor(weights))
    assert make_loss("meta", [5, 4, 3])(torch.zeros(4, 3), LABELS[:4], torch.zeros(4)).item() == 0


@pytest.mark.parametrize("net", [{"depth": 8, "width": 2}, {"depth": 8, "width": 2, "head": "cosine"}])
def test_a_network_of_the_library_trains_in_bfloat16(net):
    config = TrainConfig(epochs=1, batch=9, lr=0.01, precision="bfloat16", device="cpu")
    model, start = (build_net(net, 3, 1, seed=0) for _ in range(2))
    train(model, make_loss("meta", [9] * 3), some_images(27, size=8), config, 0, NORMALISE)
    pairs = list(zip(model.parameters(), start.parameters(), strict=True))
    assert all(bool(p.isfinite().all()) for p, _ in pairs)
    assert not all(torch.equal(p, q) for p, q in pairs)
    images, labels = torch.randn(6, 1, 8, 8, generator=GENERATOR), torch.arange(6) % 3
    whole = meta_weights(start, images, labels, images, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(meta_weights(start, images, labels, images, labels), whole)


def test_wrong_labels_get_no_weight_from_right_ones():
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0] * 40 + [1] * 40)
    truth = labels.clone()
    truth[:8] = 1  # eight images of class 1 are labelled 0
    pixels = torch.randint(60, (80, 1, 6, 6), generator=generator) + 120 * truth.view(-1, 1, 1, 1)
    part = Images(pixels.to(torch.uint8), labels)
    config = TrainConfig(epochs=3, batch=20, lr=0.02, device="cpu")
    net = train(small_net(classes=2), make_loss("ce", [40, 40]), part, config, 0, NORMALISE).eval()
    inputs = (part.images.float() / 255 - 0.5) / 0.25
    weights = meta_weights(net, inputs, labels, inputs[8:], labels[8:])
    assert float(weights[:8].sum()) == 0
    assert float(weights[8:].min()) > 0


@pytest.mark.parametrize("more", [{}, {"precision": "bfloat16"}, {"views": "three", "augment": "crop_flip"}])
def test_the_recipe_trains_and_repeats(more):
    config = TrainConfig(epochs=2, batch=8, lr=0.01, device="cpu", **more)
    runs = [
        train(small_net(), make_loss("meta", [11] * 3, defer_epoch=1), some_images(), config, 0, NORMALISE)
        for _ in range(2)
    ]
    one, two = (run.state_dict() for run in runs)
    assert all(torch.equal(one[name], two[name]) for name in one)
