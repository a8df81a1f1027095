"""Every metric against its definition with dense C x C matrices in numpy, then its invariances."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lt_lib.collapse import Collapse, neural_collapse, simplex_etf
from lt_lib.collapse.metrics import pair_angles


def draw(seed: int, classes: int = 5, dim: int = 7, most: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, most + 1, (classes,), generator=g)
    labels = torch.arange(classes).repeat_interleave(counts)
    labels = labels[torch.randperm(len(labels), generator=g)]
    shape = {"generator": g, "dtype": torch.float64}
    centres = 2 * torch.randn(classes, dim, **shape)
    features = centres[labels] + torch.randn(len(labels), dim, **shape) + 3
    return features, labels, torch.randn(classes, dim, **shape), torch.randn(classes, **shape)


def dense(h: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray, within: str) -> dict[str, Any]:
    """Oracle: the definitions, as matrices."""
    c = len(w)
    mu = np.stack([h[y == k].mean(0) for k in range(c)])
    centre = mu.mean(0)
    m = mu - centre
    p = np.eye(c) - 1 / c
    centred = h - mu[y]
    covariances = [centred[y == k].T @ centred[y == k] / np.sum(y == k) for k in range(c)]
    shares = np.full(c, 1 / c) if within == "class" else np.bincount(y) / len(y)
    sigma_w = sum(s * v for s, v in zip(shares, covariances, strict=True))
    sigma_b = m.T @ m / c
    w0, b0 = p @ w, p @ (b + w @ centre)
    tau = np.linalg.norm(w0) * np.linalg.norm(m) / (c - 1)
    unit = m / np.linalg.norm(m, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(c, dtype=bool)]
    norms, lengths = np.linalg.norm(m, axis=1), np.linalg.norm(w, axis=1)
    nearest = np.linalg.norm(h[:, None] - mu, axis=2).argmin(1)
    fro = np.linalg.norm
    return {
        "nc1": np.trace(sigma_w @ np.linalg.pinv(sigma_b, rcond=1e-12)) / c,
        "nc2": fro(m @ m.T / fro(m @ m.T) - p / math.sqrt(c - 1)),
        "nc2_floor": math.sqrt(max(0, 2 - 2 * math.sqrt(h.shape[1] / (c - 1)))),
        "nc3": fro(w0 / fro(w0) - m / fro(m)),
        "nc3_uncentred": fro(w / fro(w) - m / fro(m)),
        "nc4": np.mean((h @ w.T + b).argmax(1) != nearest),
        "offset": math.sqrt(c / (c - 1)) * fro(b0) / tau,
        "logit_scale": tau,
        "logit_noise": np.trace(w0 @ sigma_w @ w0.T) / tau**2,
        "equiangularity": cosines.std(),
        "max_angle": np.abs(cosines + 1 / (c - 1)).mean(),
        "equinorm_means": norms.std() / norms.mean(),
        "equinorm_weights": lengths.std() / lengths.mean(),
        "rank": np.linalg.matrix_rank(m),
        "classes": c,
        "absent": (),
    }


def assert_same(a: Collapse, b: Collapse, rel: float = 1e-8, skip: tuple[str, ...] = ()) -> None:
    for field in fields(Collapse):
        if field.name not in skip:
            expected = pytest.approx(getattr(b, field.name), rel=rel, abs=rel)
            assert getattr(a, field.name) == expected, field.name


@pytest.mark.parametrize("within", ["class", "sample"])
@pytest.mark.parametrize(("classes", "dim"), [(5, 7), (8, 3), (6, 5), (3, 1), (2, 4)])
def test_every_metric_equals_its_dense_definition(classes: int, dim: int, within: str) -> None:
    h, y, w, b = draw(classes + dim, classes, dim)
    found = neural_collapse(h, y, w, b, within=within)
    for name, value in dense(*(t.numpy() for t in (h, y, w, b)), within).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_without_a_classifier_its_metrics_are_none_and_the_rest_stays() -> None:
    h, y, w, b = draw(0)
    bare, full = neural_collapse(h, y), neural_collapse(h, y, w, b)
    assert bare.nc3 is bare.nc3_uncentred is bare.nc4 is bare.offset is bare.equinorm_weights is None
    assert (bare.nc1, bare.nc2, bare.equiangularity) == (full.nc1, full.nc2, full.equiangularity)
    assert neural_collapse(h, y, w) == neural_collapse(h, y, w, torch.zeros(5))


def test_float32_input_is_computed_in_float64() -> None:
    h, y, w, b = draw(1)
    single = neural_collapse(h.float(), y, w.float(), b.float())
    assert_same(
        single, neural_collapse(h.float().double(), y, w.float().double(), b.float().double()), rel=1e-15
    )
    assert_same(single, neural_collapse(h, y, w, b), rel=1e-5)


@given(st.integers(0, 10_000), st.floats(0.1, 100), st.floats(0.1, 100))
@settings(max_examples=25, deadline=None)
def test_shift_rotation_and_scale_leave_the_geometry(seed: int, grow: float, gain: float) -> None:
    h, y, w, b = draw(seed)
    g = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(7, 7, generator=g, dtype=torch.float64)).Q
    shift = torch.randn(7, generator=g, dtype=torch.float64)
    before = neural_collapse(h, y, w, b)
    rigid = neural_collapse(h @ turn + shift, y, w @ turn, b - w @ turn @ shift)
    assert_same(rigid, before, rel=1e-7)
    scaled = neural_collapse(grow * h, y, gain * w, grow * gain * b)
    assert_same(scaled, before, rel=1e-7, skip=("logit_scale",))
    assert scaled.logit_scale == pytest.approx(grow * gain * before.logit_scale)
    # a constant added to all logits, by the bias or by the rows, moves only what reads raw rows
    moved = neural_collapse(h, y, w + shift, b + 1)
    assert_same(moved, before, rel=1e-7, skip=("nc3_uncentred", "equinorm_weights"))


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_order_of_samples_and_names_of_classes_do_not_matter(seed: int) -> None:
    h, y, w, b = draw(seed)
    g = torch.Generator().manual_seed(seed)
    order, rename = torch.randperm(len(y), generator=g), torch.randperm(5, generator=g)
    back = rename.argsort()
    assert_same(
        neural_collapse(h[order], rename[y[order]], w[back], b[back]), neural_collapse(h, y, w, b), 1e-9
    )


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_ranges(seed: int) -> None:
    # guards D10
    found = neural_collapse(*draw(seed))
    assert found.nc1 >= 0
    assert found.nc2_floor - 1e-12 <= found.nc2 < math.sqrt(2)
    assert found.nc3 is not None
    assert 0 <= found.nc3 <= 2
    assert found.nc3_uncentred is not None
    if found.nc3 <= math.sqrt(2):  # <P W, M> >= 0: then leaving out the centring can only add distance
        assert found.nc3_uncentred >= found.nc3 - 1e-12
    assert found.nc4 is not None
    assert 0 <= found.nc4 <= 1


def test_uncentred_nc3_is_smaller_when_the_classifier_points_away() -> None:
    means = simplex_etf(4, 3)
    found = neural_collapse(means, torch.arange(4), -means + torch.tensor([5.0, 0, 0]))
    assert found.nc3 == pytest.approx(2)
    assert found.nc3_uncentred is not None
    assert found.nc3_uncentred < 1.6


def test_perfect_collapse_is_zero_to_machine_precision() -> None:
    means = 3 * simplex_etf(10, 16, seed=2)
    labels = torch.arange(10).repeat(4)
    found = neural_collapse(means[labels] + 7, labels, 2 * means, -14 * means.sum(1))
    zeros = ("nc2", "nc3", "nc3_uncentred", "equiangularity", "max_angle", "equinorm_means", "nc1", "offset")
    assert all(getattr(found, name) < 1e-14 for name in zeros)
    assert found.nc4 == 0
    assert found.logit_scale == pytest.approx(math.sqrt(10) * 6 * math.sqrt(10) * 3 / 9)


def test_noisy_frame_has_nc1_of_the_closed_form() -> None:
    # ETF of radius a, noise N(0, s^2 I): NC1 = s^2 (C - 1)^2 / (C a^2) = 0.0025
    frame = 3 * simplex_etf(4, 16, seed=1)
    labels = torch.arange(4).repeat_interleave(50_000)
    noise = torch.randn(len(labels), 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert neural_collapse(frame[labels] + 0.1 * noise, labels).nc1 == pytest.approx(0.0025, rel=5e-3)


@pytest.mark.parametrize("size", [1e-6, 1e-9])
def test_tiny_nc1_keeps_its_digits_under_a_large_common_mean(size: float) -> None:
    # guards D8 D10: two samples a class at +- size along an axis of the means, so Sigma_W is known exactly
    frame = simplex_etf(4, 3)
    axis = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    features = torch.cat([frame + size * axis, frame - size * axis])
    labels = torch.arange(4).repeat(2)
    expected = size**2 * 3 / 4  # Sigma_W = s^2 v v^T and Sigma_B = I / 3
    assert neural_collapse(features, labels).nc1 == pytest.approx(expected, rel=1e-6)
    # adding 100 rounds the features themselves, by up to 1e-14
    moved = neural_collapse(features + 100, labels).nc1
    assert moved == pytest.approx(expected, rel=4 * 1e-14 / size)


def test_noise_measured_by_logits_is_nc1_at_collapse_of_the_means() -> None:
    h, y, _, _ = draw(3, 4, 6)
    frame = simplex_etf(4, 6)
    within = h - torch.stack([h[y == c].mean(0) for c in range(4)])[y]
    found = neural_collapse(2 * frame[y] + within, y, 5 * frame)
    assert found.logit_noise == pytest.approx(found.nc1, rel=1e-12)


def test_absent_class_is_left_out_and_named() -> None:
    # guards P9
    h, y, w, b = draw(4)
    kept = y != 2
    found = neural_collapse(h[kept], y[kept], w, b, classes=5)
    rest = torch.tensor([0, 1, 3, 4])
    renamed = torch.tensor([0, 1, -1, 2, 3])[y[kept]]
    assert_same(found, neural_collapse(h[kept], renamed, w[rest], b[rest]), 1e-12, skip=("absent",))
    assert found.absent == (2,)
    assert found.classes == 4


def test_one_sample_in_a_class_adds_no_variability() -> None:
    # guards D8
    means = simplex_etf(3, 2)
    one_each = neural_collapse(means, torch.arange(3))
    assert one_each.nc1 == 0
    features = torch.cat([means, means[:1] + 0.2, means[:1] - 0.2])
    mixed = neural_collapse(features, torch.tensor([0, 1, 2, 0, 0]))
    # Sigma_W = (1/3) (2/3) 0.04 J, Sigma_B = I / 2
    assert mixed.nc1 == pytest.approx((2 / 9 * 0.04) * 2 * 2 / 3, rel=1e-12)


def test_coinciding_means_give_nan_rather_than_a_perfect_zero() -> None:
    noise = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    found = neural_collapse(torch.cat([noise, noise]), torch.arange(2).repeat_interleave(10), torch.eye(2, 3))
    assert found.rank == 0
    assert math.isnan(found.nc1)
    assert math.isnan(found.nc2)
    # minority collapse: two of three classes share a mean
    features = torch.tensor([[1.1, 0.3], [1.1, 0.3], [-0.7, 0.9]]) + 100
    assert neural_collapse(features, torch.arange(3)).rank == 1


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
@pytest.mark.parametrize("shift", [0.0, 0.7, -33.3])
def test_a_class_mean_at_the_global_mean_has_no_direction(order: list[int], shift: float) -> None:
    # the rounding of such a mean, made a unit vector, gave other angles for each order and shift
    features = torch.tensor([[0.1], [0.3], [0.2]], dtype=torch.float64).repeat(3, 1) + shift
    found = neural_collapse(features, torch.tensor(order).repeat(3))
    # one pair is left, at cosine -1; three classes' frame has -1/2
    assert found.equiangularity == pytest.approx(0, abs=1e-7)
    assert found.max_angle == pytest.approx(0.5, rel=1e-7)
    assert found.equinorm_means == pytest.approx(1 / math.sqrt(2), rel=1e-7)


@pytest.mark.parametrize("per_class", [20, 3001])
@pytest.mark.parametrize("value", [0.1, 1e-9, 12345.678])
def test_means_that_coincide_to_rounding_give_nan_everywhere(value: float, per_class: int) -> None:
    labels = torch.arange(3).repeat(per_class)
    features = torch.full((len(labels), 4), value, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = neural_collapse(features, labels, weight)
    assert found.rank == found.logit_scale == 0
    names = ("nc1", "nc2", "nc3", "nc3_uncentred", "offset", "logit_noise", "equinorm_means")
    for name in (*names, "equiangularity", "max_angle"):
        assert math.isnan(getattr(found, name)), name
    # equal rows of the classifier: nothing to compare, though the means stand well
    equal = neural_collapse(torch.eye(3, 4), torch.arange(3), torch.full((3, 4), value).double())
    assert math.isnan(equal.nc3)
    assert equal.logit_scale == 0


def test_means_that_differ_beyond_rounding_stay_finite() -> None:
    frame = simplex_etf(4, 3)
    found = neural_collapse(1 + 1e-10 * frame, torch.arange(4), frame)
    assert found.rank == 3
    assert found.nc2 < 1e-4
    assert found.nc3 < 1e-4
    assert found.equiangularity < 1e-4


def test_angles_do_not_depend_on_the_block() -> None:
    m = draw(0, 23, 6)[2]
    m = m - m.mean(0)
    whole = pair_angles(m, block=100)
    for block in (1, 5, 23):
        assert pair_angles(m, block=block) == pytest.approx(whole, rel=1e-12)


def test_bad_input_is_one_sentence() -> None:
    h, y, w, b = draw(0)
    # guards D6
    with pytest.raises(ValueError, match=r"must be 0\.\.4; found 5"):
        neural_collapse(h, y + 1, w, b)
    bad = h.clone()
    bad[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"`features` must be finite.*index \(3, 1\)"):
        neural_collapse(bad, y)
    with pytest.raises(ValueError, match="at least 2 classes; found 1"):
        neural_collapse(h, torch.zeros_like(y))
    with pytest.raises(ValueError, match=r"`weight` must be \(5, 7\)"):
        neural_collapse(h, y, w[:, :3], classes=5)
    with pytest.raises(ValueError, match="`bias` must hold one number for each of the 5 classes"):
        neural_collapse(h, y, w, b[:3])
    with pytest.raises(ValueError, match="n > 0"):
        neural_collapse(h[:0], y[:0])
    with pytest.raises(ValueError, match="`within` must be one of class, sample"):
        neural_collapse(h, y, within="classes")
