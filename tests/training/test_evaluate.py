import copy

import pytest
import torch
from small_training import NORMALISE, small_net, some_images

from lt_lib.training import evaluate


def test_a_ragged_last_batch_changes_nothing():  # guards D19
    net, part = small_net(), some_images(n=23)
    whole = evaluate(net, part, NORMALISE, batch=23)
    for batch in (1, 4, 10, 22, 1000):
        parts = evaluate(net, part, NORMALISE, batch=batch)
        assert parts.logits.shape == (23, 3)
        assert torch.allclose(parts.logits, whole.logits, rtol=1e-5, atol=1e-6)
        assert torch.allclose(parts.features, whole.features, rtol=1e-5, atol=1e-6)
        assert torch.equal(parts.classes, whole.classes)
        assert float(parts.cross_entropy().sum()) == pytest.approx(
            float(whole.cross_entropy().sum()), rel=1e-5
        )


def test_logits_are_those_of_the_eval_mode_network_on_normalised_pixels():
    net, part = small_net(), some_images(n=9)
    found = evaluate(net, part, NORMALISE)
    net.eval()
    expected = net((part.images.double() / 255 - 0.5).float() / 0.25)
    assert torch.allclose(found.logits, expected, rtol=1e-4, atol=1e-5)
    assert torch.allclose(net.head(found.features), found.logits, rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_was():  # guards D26
    net, part = small_net(), some_images()
    net.train()
    net.bn.eval()  # mixed modes
    net(torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))).sum().backward()
    before, gradients = copy.deepcopy(net.state_dict()), [p.grad.clone() for p in net.parameters()]
    modes = {name: module.training for name, module in net.named_modules()}
    random = torch.get_rng_state()
    evaluate(net, part, NORMALISE, batch=5)
    assert {name: module.training for name, module in net.named_modules()} == modes
    for (name, was), now in zip(before.items(), net.state_dict().values(), strict=True):
        assert torch.equal(was, now), name
    for gradient, parameter in zip(gradients, net.parameters(), strict=True):
        assert parameter.requires_grad
        assert torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.get_rng_state(), random)


def test_modes_come_back_after_an_error():
    net = small_net()
    with pytest.raises(ValueError, match="first layer takes 1"):
        evaluate(net, some_images(channels=3), (torch.zeros(3), torch.ones(3)))
    net.head = torch.nn.Linear(7, 3)
    with pytest.raises(RuntimeError):
        evaluate(net, some_images(), NORMALISE)
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize(
    ("normalise", "sentence"),
    [
        ((torch.zeros(3), torch.ones(3)), "each of the 1 channels"),
        ((torch.zeros(1), torch.zeros(1)), "not positive"),
        ((torch.tensor([float("nan")]), torch.ones(1)), r"`normalise\[0\]` must be finite"),
        ((torch.zeros(1), torch.tensor([float("inf")])), r"`normalise\[1\]` must be finite"),
    ],
)
def test_bad_normalisation_is_refused(normalise, sentence):
    with pytest.raises(ValueError, match=sentence):
        evaluate(small_net(), some_images(), normalise)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match=r"`precision` must be one of .*; found `bf16`"):
        evaluate(small_net(), some_images(), NORMALISE, precision="bf16")
    with pytest.raises(ValueError, match=r"`memory_format` must be one of .*; found `nhwc`"):
        evaluate(small_net(), some_images(), NORMALISE, memory_format="nhwc")


def test_a_network_of_double_precision_says_the_same():
    single, double = (evaluate(net, some_images(), NORMALISE) for net in (small_net(), small_net().double()))
    assert torch.allclose(single.logits, double.logits, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_close_to_float32():
    net, part = small_net(), some_images()
    full, half = (evaluate(net, part, NORMALISE, precision=p) for p in ("float32", "bfloat16"))
    assert half.logits.dtype == torch.float32
    assert not torch.equal(half.logits, full.logits)
    assert torch.allclose(half.logits, full.logits, atol=0.05)
