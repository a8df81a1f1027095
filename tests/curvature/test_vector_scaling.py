import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lt_lib.curvature.head_spikes import collapsed_head, head_spikes
from lt_lib.curvature.vector_scaling import logit_changes, scaling_share, vector_scaling_share


def explicit(logits: np.ndarray, change: np.ndarray) -> float:
    """R^2 by least squares on 2C explicit columns of n C numbers."""
    n, classes = logits.shape
    columns = []
    for k in range(classes):
        gain, bias = np.zeros((n, classes)), np.zeros((n, classes))
        gain[:, k], bias[:, k] = logits[:, k], 1
        columns += [gain, bias]
    design = np.stack([(c - c.mean(1, keepdims=True)).ravel() for c in columns], 1)
    target = (change - change.mean(1, keepdims=True)).ravel()
    fitted = design @ np.linalg.lstsq(design, target, rcond=1e-9)[0]
    return float(fitted @ fitted / (target @ target))


@given(st.integers(0, 1000), st.integers(2, 30), st.integers(3, 6), st.floats(-3, 3))
@settings(max_examples=40, deadline=None)
def test_share_against_explicit_least_squares(seed: int, n: int, classes: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    logits, changes = rng.standard_normal((n, classes)) * 10**size, rng.standard_normal((3, n, classes))
    found = scaling_share(torch.from_numpy(logits), torch.from_numpy(changes))
    np.testing.assert_allclose(found, [explicit(logits, change) for change in changes], rtol=1e-6)


def test_vector_scaling_itself_has_share_one_whatever_shift_is_added() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 5, generator=g).double()
    gains, biases, shift = (
        torch.randn(5, generator=g),
        torch.randn(5, generator=g),
        torch.randn(40, 1, generator=g),
    )
    change = gains * logits + biases + 100 * shift
    assert float(scaling_share(logits, change[None])) == pytest.approx(1, abs=1e-12)
    assert math.isnan(float(scaling_share(logits, shift.expand(1, 40, 5))))


def head_net(bias: bool, common: float) -> tuple[nn.Module, Tensor, Tensor]:
    head = collapsed_head(6, 0.9, 1.0, common)
    model = nn.Linear(6, 6, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(head.weight)
        if bias:
            model.bias.zero_()
    return model, head.means.repeat_interleave(3, 0), torch.arange(6).repeat_interleave(3)


@pytest.mark.parametrize(("bias", "common"), [(True, 0.0), (True, 0.7), (False, 0.7)])
def test_spikes_of_a_collapsed_head_are_vector_scaling_and_the_mini_bulk_is_not(
    bias: bool, common: float
) -> None:
    model, x, y = head_net(bias, common)
    blocks = head_spikes(6, 0.9, 1.0, common, bias).directions(x[::3], bias, mini_bulk=True)
    spikes = torch.cat([blocks["temperature"], blocks["upper"], blocks["lower"]])
    found = vector_scaling_share(model, x, y, torch.cat([spikes, blocks["mini_bulk"]]), random=300)
    for share in (found.sample, found.class_mean):
        torch.testing.assert_close(share[:11], torch.ones(11).double(), atol=1e-10, rtol=0)
        torch.testing.assert_close(share[11:], torch.zeros(19).double(), atol=1e-10, rtol=0)
    gamma = common**2 + bias
    null = (gamma + 6 / 25) / (gamma + 1)  # ratio of mean energies: far more than 11 of 30 dimensions
    assert float(found.random_sample.mean()) == pytest.approx(null, abs=0.05)
    assert found.random_sample.shape == found.random_class_mean.shape == (300,)


def test_logit_changes_against_central_differences() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4)).double()
    model[0].bias.requires_grad_(False)
    model[1].running_var.fill_(2.0)
    x, vectors = torch.randn(11, 3).double(), torch.randn(3, 24 + 16 + 36).double()
    logits, changes = logit_changes(model, x, vectors, batch=4)
    only = logit_changes(model, x, vectors[:, 40:], params="3.*")[1]  # its tangents are zero elsewhere
    padded = torch.cat([torch.zeros(3, 40).double(), vectors[:, 40:]], 1)
    torch.testing.assert_close(only, logit_changes(model, x, padded)[1])
    model.eval()
    torch.testing.assert_close(logits, model(x).detach())
    trainable = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trainable]
    for vector, change in zip(vectors, changes, strict=True):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                for p, p0, v in zip(
                    trainable, start, vector.split([p.numel() for p in trainable]), strict=True
                ):
                    p.copy_(p0 + sign * 1e-6 * v.view_as(p))
                ends.append(model(x))
        torch.testing.assert_close((ends[0] - ends[1]) / 2e-6, change, atol=1e-6, rtol=1e-6)


def test_class_mean_level_leaves_absent_classes_out() -> None:
    model, x, y = head_net(True, 0.5)
    with torch.no_grad():
        model.weight += 0.3 * torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    vectors = torch.randn(2, 42, generator=torch.Generator().manual_seed(2)).double()
    kept = y != 4
    found = vector_scaling_share(model, x[kept], y[kept], vectors, random=0)
    logits, changes = logit_changes(model, x, vectors)
    rows = [torch.stack([m[y == c].mean(0) for c in range(6) if c != 4]).numpy() for m in (logits, *changes)]
    assert found.class_mean.tolist() == pytest.approx([explicit(rows[0], row) for row in rows[1:]])
    assert found.sample.tolist() == pytest.approx(
        [explicit(logits[kept].numpy(), c[kept].numpy()) for c in changes]
    )
    assert len(found.random_sample) == 0


def test_centred_gains_do_not_see_a_shift_of_the_logits() -> None:
    model, x, y = head_net(True, 0.5)
    vectors = torch.randn(2, 42, generator=torch.Generator().manual_seed(2)).double()
    plain = vector_scaling_share(model, x, y, vectors, centre_logits=True)
    with torch.no_grad():
        model.weight += torch.randn(
            1, 6, generator=torch.Generator().manual_seed(3)
        )  # the same for all logits
    shifted = vector_scaling_share(model, x, y, vectors, centre_logits=True)
    torch.testing.assert_close(plain.sample, shifted.sample)
    torch.testing.assert_close(plain.random_class_mean, shifted.random_class_mean)
    assert not torch.allclose(plain.sample, vector_scaling_share(model, x, y, vectors).sample)


def test_refusals() -> None:
    model, x, y = head_net(True, 0.5)
    with pytest.raises(ValueError, match="42 chosen parameters"):
        vector_scaling_share(model, x, y, torch.ones(1, 40))
    with pytest.raises(ValueError, match="`random` must be a whole number of at least 0"):
        vector_scaling_share(model, x, y, torch.ones(1, 42), random=-1)
    with pytest.raises(ValueError, match="`batch` must be"):
        vector_scaling_share(model, x, y, torch.ones(1, 42), batch=0)
    with pytest.raises(ValueError, match="one class an image"):
        vector_scaling_share(model, x, y[:-1], torch.ones(1, 42))
    with pytest.raises(ValueError, match=r"\(K, n, C\)"):
        scaling_share(torch.ones(3, 4), torch.ones(3, 4))
