import pytest
import torch
from torch import nn

from lt_lib.nets import CosineHead, ETFHead, LinearHead, resnet
from lt_lib.posthoc import (
    BatchNormLinearHead,
    UnitLinearHead,
    adjusted_head,
    logit_adjustment,
    prior_shift,
    tau_normalise,
    tau_scales,
    with_head,
)

COUNTS = [40, 20, 10, 5]


def with_statistics(head):
    """Return the head in eval mode, its BatchNorm as after a training."""
    with torch.no_grad():
        for tensor in (head.bn.running_mean, head.bn.running_var, head.bn.weight, head.bn.bias):
            tensor.copy_(torch.rand(6, generator=torch.Generator().manual_seed(tensor.numel())) + 0.5)
    return head.eval()


def heads():
    linear = LinearHead(6, 4)
    with torch.no_grad():
        linear.bias.copy_(torch.tensor([0.3, -0.2, 0.1, 0.4]))
    return {
        "linear": linear,
        "no bias": LinearHead(6, 4, bias=False),
        "cosine": CosineHead(6, 4, scale=7.0),
        "etf": ETFHead(6, 4, scale=3.0),
        "etf on the sphere": ETFHead(6, 4, scale=3.0, unit=True),
        "etf behind a norm": with_statistics(ETFHead(6, 4, scale=3.0, batch_norm=True)),
        "etf on the sphere behind a norm": with_statistics(ETFHead(6, 4, unit=True, batch_norm=True)),
    }


@pytest.mark.parametrize("name", heads())
def test_the_adjusted_head_gives_the_adjusted_logits(name):
    head, features = heads()[name], torch.randn(9, 6)
    before = {n: t.clone() for n, t in head.state_dict().items()}
    changed = adjusted_head(head, shift=prior_shift(COUNTS))
    assert torch.allclose(changed(features), logit_adjustment(head(features), COUNTS), atol=1e-5)
    scales, shift = torch.tensor([2.0, 0.5, 1.0, 3.0]), torch.tensor([1.0, 0.0, -1.0, 0.0])
    changed = adjusted_head(head, scales, shift)
    assert torch.allclose(changed(features), scales * head(features) + shift, atol=1e-5)
    assert torch.allclose(
        changed.inputs(features) @ changed.weight_matrix().T + changed.bias_vector(), changed(features)
    )
    again = adjusted_head(changed, shift=-shift)
    assert torch.allclose(again(features), scales * head(features), atol=1e-5)
    assert isinstance(changed, UnitLinearHead) == (name in ("cosine", "etf on the sphere"))
    assert {n: t.tolist() for n, t in head.state_dict().items()} == {n: t.tolist() for n, t in before.items()}


def test_the_bias_is_scaled_kept_or_dropped():
    head, features = heads()["linear"], torch.randn(9, 6)
    scales = tau_scales(head.weight, 1)
    product = features @ tau_normalise(head.weight, 1).T
    for bias, added in (("scale", scales.float() * head.bias), ("keep", head.bias), ("drop", 0)):
        assert torch.allclose(adjusted_head(head, scales, bias=bias)(features), product + added, atol=1e-6)
    assert torch.equal(adjusted_head(head)(features), head(features))


def test_a_batch_norm_stays_frozen_after_the_head():
    head, features = heads()["etf on the sphere behind a norm"], torch.randn(9, 6)
    changed = adjusted_head(head, tau_scales(head.weight_matrix(), 1), bias="drop").train()
    assert torch.allclose(changed(features), head(features), atol=1e-5)  # rows of length one already
    assert [name for name, _ in changed.named_parameters()] == ["weight", "bias"]
    assert type(changed) is BatchNormLinearHead


def test_a_network_gets_another_head_and_the_old_one_keeps_its_own():
    net = resnet(8, 2, classes=4, channels=1).eval()
    images = torch.randn(3, 1, 8, 8)
    before = net(images)
    changed = with_head(net, adjusted_head(net.head, shift=prior_shift(COUNTS)))
    assert torch.allclose(changed(images), logit_adjustment(before, COUNTS), atol=1e-5)
    assert torch.equal(net(images), before)
    assert changed.conv.weight.data_ptr() != net.conv.weight.data_ptr()
    assert not changed.training


class Squared(LinearHead):
    def inputs(self, features):
        return features**2


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: adjusted_head(nn.Linear(6, 4)), "must be linear in what it sees.*found Linear"),
        (lambda: adjusted_head(Squared(6, 4)), "must act on the features or on their direction.*Squared"),
        (
            lambda: adjusted_head(LinearHead(6, 4), [1, 2, 3]),
            "`scales` must hold one number for each of the 4",
        ),
        (lambda: adjusted_head(LinearHead(6, 4), shift=[1, 2, 3, float("inf")]), "`shift` must be finite"),
        (lambda: adjusted_head(LinearHead(6, 4), [1e39] * 4), "float32 can hold; found one that overflows"),
        (lambda: adjusted_head(LinearHead(6, 4), bias="half"), "`bias` must be one of drop, keep, scale"),
        (lambda: with_head(nn.Linear(6, 4), LinearHead(6, 4)), "Linear has no `head`"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
