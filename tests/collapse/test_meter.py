import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lt_lib.collapse import Collapse, CollapseMeter, class_losses, neural_collapse

CLASSES, DIM = 4, 5


def data(seed: int, n: int = 60) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(CLASSES), torch.randint(CLASSES, (n - CLASSES,), generator=g)])
    shift = torch.randn(CLASSES, DIM, generator=g, dtype=torch.float64)
    features = shift[labels] + 0.1 * torch.randn(n, DIM, generator=g, dtype=torch.float64) + 10
    return features, labels, torch.randn(CLASSES, DIM, generator=g), torch.randn(CLASSES, generator=g)


def numbers(result: Collapse) -> list[Any]:
    names = ("nc1", "nc2", "nc3", "offset", "logit_noise", "equiangularity", "equinorm_means")
    return [getattr(result, name) for name in names]


@given(st.integers(0, 1000), st.lists(st.integers(0, 59), max_size=8), st.sampled_from(["class", "sample"]))
@settings(max_examples=40, deadline=None)
def test_split_into_batches_changes_nothing(seed: int, cuts: list[int], within: str) -> None:
    h, y, w, b = data(seed)
    whole = neural_collapse(h, y, w, b, within=within)
    counts = torch.bincount(y, minlength=CLASSES)
    for announced in (counts, None):
        meter = CollapseMeter(CLASSES, DIM, announced, within)
        edges = [0, *sorted(cuts), len(y)]
        for start, end in pairwise(edges):
            meter.update(h[start:end], y[start:end])
        assert numbers(meter.compute(w, b)) == pytest.approx(numbers(whole), rel=1e-9, abs=1e-12)
        assert meter.counts.tolist() == counts.tolist()


def test_one_sample_at_a_time_keeps_an_nc1_of_1e_minus_12() -> None:
    # guards D10: sums of squares minus squares of sums would leave noise of 1e-13 or a negative number
    h, y, _, _ = data(0)
    means = torch.stack([h[y == c].mean(0) for c in range(CLASSES)])
    within = h - means[y]
    tight = means[y] + 1e-6 * within
    meter = CollapseMeter(CLASSES, DIM, torch.bincount(y))
    for i in range(len(y)):
        meter.update(tight[i : i + 1], y[i : i + 1])
    expected = 1e-12 * neural_collapse(h, y).nc1
    assert meter.compute().nc1 == pytest.approx(expected, rel=1e-6)


def test_means_and_covariance_against_direct_sums() -> None:
    h, y, _, _ = data(1)
    y = torch.where(y == 2, 0, y)
    meter = CollapseMeter(CLASSES, DIM, torch.bincount(y, minlength=CLASSES))
    meter.update(h, y)
    present = [0, 1, 3]
    covariance = sum(torch.cov(h[y == c].T, correction=0) for c in present) / 3
    torch.testing.assert_close(meter.within_covariance(), covariance, rtol=1e-10, atol=1e-14)
    assert torch.equal(meter.within_covariance(), meter.within_covariance().T)
    torch.testing.assert_close(meter.means()[3], h[y == 3].mean(0))
    assert bool(meter.means()[2].isnan().all())  # guards P9
    assert meter.compute().absent == (2,)


def test_nc4_is_a_second_pass_and_batches_average_by_size() -> None:
    h, y, w, b = data(2)
    whole = neural_collapse(h, y, w, b).nc4
    meter = CollapseMeter(CLASSES, DIM)
    meter.update(h, y)
    assert meter.compute(w, b).nc4 is None
    parts = [(37, meter.disagreement(h[:37], y[:37], w, b)), (23, meter.disagreement(h[37:], y[37:], w, b))]
    assert sum(n * share for n, share in parts) / 60 == pytest.approx(whole)
    means = torch.stack([h[y == c].mean(0) for c in range(CLASSES)])
    # the classifier of nearest means agrees with them everywhere
    assert meter.disagreement(h, y, means, -means.square().sum(1) / 2) == 0
    assert math.isnan(meter.disagreement(h[:0], y[:0], w, b))


def test_nc4_leaves_absent_classes_out_of_both_choices() -> None:
    # guards P9: a bias of 100 would make every sample go to the absent class
    h, y, w, b = data(3)
    kept = y != 1
    loud = torch.where(torch.arange(CLASSES) == 1, 100.0, b)
    assert neural_collapse(h[kept], y[kept], w, loud).nc4 == neural_collapse(h[kept], y[kept], w, b).nc4
    meter = CollapseMeter(CLASSES, DIM)
    meter.update(h[kept], y[kept])
    assert meter.disagreement(h, y, w, b) == meter.disagreement(h[kept], y[kept], w, b)


def test_gradients_and_inputs_are_left_alone() -> None:
    h, y, w, _ = data(4)
    h.requires_grad_()
    before = h.detach().clone()
    neural_collapse(h, y, w)
    assert h.grad is None
    assert torch.equal(h, before)


def test_announced_counts_are_held_to() -> None:
    h, y, _, _ = data(5)
    counts = torch.bincount(y, minlength=CLASSES)
    meter = CollapseMeter(CLASSES, DIM, counts)
    meter.update(h[:-1], y[:-1])
    last = int(y[-1])
    sentence = (
        f"Class {last} has {int(counts[last]) - 1} samples so far, but .* announced {int(counts[last])}"
    )
    with pytest.raises(ValueError, match=sentence):
        meter.compute()
    meter.update(h[-1:], y[-1:])
    assert meter.compute().classes == CLASSES


def test_bad_input_is_one_sentence() -> None:
    h, y, _, _ = data(6)
    meter = CollapseMeter(CLASSES, DIM)
    with pytest.raises(ValueError, match=r"`features` must be \(60, 5\).*found \(60, 4\)"):
        meter.update(h[:, :4], y)
    with pytest.raises(ValueError, match=r"must be 0\.\.3; found 4"):  # guards D6
        meter.update(h, y + 1)
    with pytest.raises(ValueError, match="at least 2 classes; found 0"):
        meter.compute()
    with pytest.raises(ValueError, match="one count for each of the 4 classes; found 3"):
        CollapseMeter(CLASSES, DIM, [1, 2, 3])
    with pytest.raises(ValueError, match=r"`class_counts` is needed for 8142 classes.*254\.4 GiB"):
        CollapseMeter(8142, 2048)
    assert int(meter.counts.sum()) == 0  # nothing was half added


class LargestTensor(TorchDispatchMode):
    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        parts = out if isinstance(out, tuple | list) else (out,)
        self.size = max(self.size, *(part.numel() for part in parts if isinstance(part, Tensor)), 0)
        return out


def test_no_tensor_reaches_classes_times_classes() -> None:
    classes, dim = 2000, 4
    labels = torch.arange(classes)
    features = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    with LargestTensor() as seen:
        assert neural_collapse(features, labels, features).nc4 is not None
    assert classes * dim <= seen.size < classes**2 / 3


def test_what_a_meter_cannot_do_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"`disagreement` needs class means.*Call `update` first"):
        CollapseMeter(3, 2).disagreement(
            torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), torch.ones(3, 2)
        )
    with pytest.raises(ValueError, match="`dim` must be at least 1; found 0"):
        CollapseMeter(3, 0)
    with pytest.raises(ValueError, match="`dim` must be at least 1; found 0"):
        neural_collapse(torch.ones(4, 0), torch.arange(4))
    with pytest.raises(ValueError, match="`features` must hold numbers in a tensor"):
        CollapseMeter(3, 2).update([[1.0], [1.0, 2.0]], [0, 1])


@pytest.mark.parametrize(
    "turn", [Tensor.numpy, Tensor.tolist, lambda t: t.to(torch.float32).requires_grad_()]
)
def test_arrays_lists_and_parameters_serve_as_tensors_do(turn: Any) -> None:
    g = torch.Generator().manual_seed(0)
    h, w, b = (torch.randn(*shape, generator=g) for shape in ((12, 2), (3, 2), (3,)))
    y = torch.arange(3).repeat(4)
    labels = y.to(torch.uint8) if callable(turn) and turn not in (Tensor.numpy, Tensor.tolist) else turn(y)
    assert neural_collapse(turn(h), labels, turn(w), turn(b)) == neural_collapse(h, y, w, b)
    found = class_losses(turn(h[:, 0].abs()), labels, 300)
    torch.testing.assert_close(found, class_losses(h[:, 0].abs(), y, 300), equal_nan=True, check_dtype=False)
