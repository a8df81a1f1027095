import io

import pytest
import torch
from torch.nn.functional import cosine_similarity

from lt_lib.collapse import simplex_etf
from lt_lib.nets import CosineHead, ETFHead, LinearHead

Head = LinearHead | CosineHead | ETFHead


def heads() -> list[Head]:
    plain = [LinearHead(12, 7), LinearHead(12, 7, bias=False), CosineHead(12, 7), ETFHead(12, 7, scale=2.5)]
    return [*plain, ETFHead(12, 7, scale=2.5, unit=True), ETFHead(12, 7, unit=True, batch_norm=True)]


@pytest.mark.parametrize("head", heads(), ids=["linear", "no bias", "cosine", "etf", "unit etf", "normed"])
def test_logits_are_linear_in_the_inputs(head: Head) -> None:
    h = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    logits = head.inputs(h) @ head.weight_matrix().T
    bias = head.bias_vector()
    torch.testing.assert_close(head(h), logits if bias is None else logits + bias)
    assert head.weight_matrix().shape == (7, 12)


def test_bias_is_read() -> None:
    head = LinearHead(3, 2)
    assert head.bias is not None
    with torch.no_grad():
        head.bias.copy_(torch.tensor([1.0, -2.0]))
    assert head(torch.zeros(1, 3)).tolist() == [[1.0, -2.0]]


def test_cosine_logits_are_cosines_within_the_scale() -> None:
    head = CosineHead(12, 7, scale=30)
    h = 1e3 * torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    expected = 30 * cosine_similarity(h[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(head(h), expected, rtol=1e-4, atol=1e-4)
    assert head(head.weight).detach().abs().max().item() <= 30 * (1 + 1e-6)
    torch.testing.assert_close(head(17 * h), head(h))
    assert head(torch.zeros(1, 12)).tolist() == [[0.0] * 7]


def test_etf_survives_saving_and_loading() -> None:
    # guards P6
    saved = ETFHead(12, 7, seed=1)
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded = ETFHead(12, 7, seed=2)
    assert not torch.equal(loaded.weight, saved.weight)
    loaded.load_state_dict(torch.load(file))
    assert torch.equal(loaded.weight, saved.weight)
    assert [name for name, _ in saved.named_buffers()] == ["weight"]
    assert list(saved.parameters()) == []


def test_etf_is_the_simplex_frame_of_its_seed() -> None:
    head = ETFHead(6, 7, scale=2.0, seed=4)
    torch.testing.assert_close(head.weight, (2 * simplex_etf(7, 6, seed=4)).float())
    assert head.double().weight.dtype == torch.float64


def test_unit_etf_logits_are_cosines_within_the_scale() -> None:
    head, plain = ETFHead(12, 7, scale=3, unit=True), ETFHead(12, 7, scale=3)
    h = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    expected = 3 * cosine_similarity(h[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(head(h), expected)
    torch.testing.assert_close(head(17 * h), head(h))
    assert torch.equal(head.weight, plain.weight)
    assert torch.equal(plain.inputs(h), h)
    torch.testing.assert_close(head.inputs(h).norm(dim=1), torch.ones(50))
    assert head(torch.zeros(1, 12)).tolist() == [[0.0] * 7]


def test_heads_draw_from_their_own_generator() -> None:
    before = torch.get_rng_state()
    first = heads()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(0)
    for a, b in zip(first, heads(), strict=True):
        assert torch.equal(a.weight_matrix(), b.weight_matrix())
    assert not torch.equal(LinearHead(12, 7, seed=1).weight, LinearHead(12, 7, seed=2).weight)


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"at least 99 for a simplex ETF of 100 classes; found 64.*0\.62605"):
        ETFHead(64, 100)
    with pytest.raises(ValueError, match="`scale` must be positive and finite; found 0"):
        CosineHead(3, 2, scale=0)


def test_batch_norm_lets_features_that_are_not_negative_reach_the_frame() -> None:
    head = ETFHead(12, 7, unit=True, batch_norm=True)
    h = torch.rand(50, 12, generator=torch.Generator().manual_seed(0))
    standard = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
    expected = standard / standard.norm(dim=1, keepdim=True) @ head.weight.T
    torch.testing.assert_close(head(h), expected)
    assert [name for name, _ in head.named_parameters()] == ["bn.weight", "bn.bias"]
