"""Sensitivity against flips counted by hand and against a plain loop over moved copies of the network."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lt_lib.surgery import class_accuracy_at, class_sensitivity, displaced, linear_logits, measure_sensitivity
from lt_lib.surgery.movement import usual_batch


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Net(nn.Module):
    """Convolution, BatchNorm with statistics, dropout, a head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A net in training mode whose labels follow its own logits with noise; 5 orthonormal directions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net().double()
        net.norm.running_var.uniform_(0.5, 2)
        x = torch.randn(1500, 2, 5, 5).double()
        with torch.no_grad():
            z = copy.deepcopy(net).eval()(x)
            z = (z - z.mean(0)) / z.std(0)
            y = (z + torch.randn_like(z)).argmax(1)
            net.head.weight.data *= 4
        size = sum(p.numel() for p in net.parameters())
        vectors = torch.linalg.qr(torch.randn(size, 5).double()).Q.T.contiguous()
    return net, vectors, x, y


def by_hand(
    net: nn.Module, vectors: Tensor, x: Tensor, y: Tensor, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return correct at +eps and at -eps, (K, n), by setting a copy's weights."""
    ends = []
    for sign in (1, -1):
        rows = []
        for v in vectors:
            moved = copy.deepcopy(net).eval()
            weights = nn.utils.parameters_to_vector(moved.parameters()) + sign * eps * v
            nn.utils.vector_to_parameters(weights, moved.parameters())
            with torch.no_grad():
                rows.append((moved(x).argmax(1) == y).numpy().astype(float))
        ends.append(np.stack(rows))
    return ends[0], ends[1]


def test_flips_of_a_line_are_those_counted_by_hand() -> None:
    # logits (w x, 0) at w = 1: class 0 where x > 0. Moved by eps along the bias, the boundary lies at -+0.5
    net = nn.Linear(1, 2)
    net.weight.data, net.bias.data = torch.tensor([[1.0], [0.0]]), torch.zeros(2)
    x = torch.tensor([[-2.0], [-0.4], [0.3], [0.45], [3.0], [-0.2], [-5.0], [-0.1]])
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    found = measure_sensitivity(net, torch.tensor([[1.0, 0.0]]), x, y, 0.5, params="bias", method="exact")
    # class 0: right at +0.5 are 4 of 5 (not -2), at -0.5 one (3.0); class 1: one of 3 (-5) and all
    torch.testing.assert_close(found.matrix, torch.tensor([[3 / 5, -2 / 3]]).double())
    assert found.flips.tolist() == [[3, 2]]
    torch.testing.assert_close(found.accuracy, torch.tensor([3 / 5, 1.0]).double())
    expected = [np.std([0, 1, 1, 1, 0], ddof=1) / 5**0.5, np.std([-1, 0, -1], ddof=1) / 3**0.5]
    np.testing.assert_allclose(found.errors[0].numpy(), expected)


@pytest.mark.parametrize("method", ["exact", "screened", "forward"])
def test_equals_a_plain_loop_over_moved_copies(case, method: str) -> None:
    net, vectors, x, y = case
    plus, minus = by_hand(net, vectors, x, y, 0.05)
    found = measure_sensitivity(net, vectors, x, y, 0.05, method=method)
    difference = plus - minus
    expected = np.stack([difference[:, y.numpy() == c].mean(1) for c in range(4)], 1) / 0.1
    wrong = (found.matrix.numpy() - expected) * 0.1 * found.flips.new_tensor(np.bincount(y)).numpy()
    flips = np.abs(difference).sum(1)
    assert flips.min() > 20
    if method == "exact":
        np.testing.assert_allclose(found.matrix.numpy(), expected, atol=1e-12)
        assert found.passes == pytest.approx(11)
        per_class = [np.abs(difference[:, y.numpy() == c]).sum(1) for c in range(4)]
        np.testing.assert_array_equal(found.flips.numpy(), np.stack(per_class, 1))
    else:
        assert np.abs(wrong).sum(1).max() <= 0.05 * flips.max()
        assert (np.abs(found.matrix.numpy() - expected) <= found.errors.numpy()).all()
    assert found.method == method


def test_screening_spends_less_and_counts_what_it_spends(case) -> None:
    net, vectors, x, y = case
    calls: list[int] = []
    hook = net.register_forward_hook(lambda module, args, out: calls.append(len(out)))
    found = measure_sensitivity(net, vectors, x, y, 0.01, method="screened")
    hook.remove()
    assert found.passes < 5
    assert not found.fell_back
    assert sum(calls) == pytest.approx(found.passes * len(x) + 4)  # four single images only probe the model


def test_no_image_need_be_left_out_of_a_small_set(case) -> None:
    net, vectors, x, y = case
    both = [measure_sensitivity(net, vectors, x[:90], y[:90], 0.3, method=m) for m in ("exact", "screened")]
    assert torch.equal(both[0].matrix, both[1].matrix)
    assert int(both[0].flips.sum()) > 0


def test_forward_mode_is_exact_where_logits_are_linear_in_the_weights(case) -> None:
    net, _, x, y = case
    size = sum(p.numel() for p in net.head.parameters())
    q = torch.linalg.qr(torch.randn(size, 3, generator=generator()).double()).Q.T.contiguous()
    args = net, q, x, y
    fast, exact = (measure_sensitivity(*args, 0.4, params="head.*", method=m) for m in ("forward", "exact"))
    assert torch.equal(fast.matrix, exact.matrix)
    assert fast.audited == 0
    linear = linear_logits(*args, params="head.*")
    alpha = torch.tensor([0.5, -0.3, 0.8])
    moved = class_accuracy_at(net, (alpha.double() @ q)[None], x, y, params="head.*")[0]
    assert torch.equal(linear.class_accuracy(alpha), moved)
    assert not torch.equal(moved, exact.accuracy)


def test_forward_mode_that_disagrees_is_dropped_for_evaluation(case) -> None:
    net, vectors, x, y = case
    fast, exact = (measure_sensitivity(net, vectors, x, y, 3.0, method=m) for m in ("forward", "exact"))
    assert fast.fell_back
    assert fast.audited > 0.02
    assert torch.equal(fast.matrix[fast.dropped], exact.matrix[fast.dropped])


def test_energy_sets_the_length_by_the_curvature(case) -> None:
    net, vectors, x, y = case
    values = torch.tensor([8.0, 2.0, -2.0, 0.5, 32.0])
    found = measure_sensitivity(net, vectors, x[:200], y[:200], 0.01, values, method="exact")
    # 0.5 * |value| * eps^2 = 0.01
    torch.testing.assert_close(found.eps, torch.tensor([0.05, 0.1, 0.1, 0.2, 0.025]).double())
    by_length = class_sensitivity(net, vectors[1:2], x[:200], y[:200], 0.1, method="exact")
    assert torch.equal(found.matrix[1], by_length[0])


def test_the_model_is_left_as_it_was(case) -> None:
    net, vectors, x, y = case
    net.head.weight.grad = torch.ones_like(net.head.weight)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    before = torch.get_rng_state()
    for method in ("screened", "forward"):
        measure_sensitivity(net, vectors, x[:150], y[:150], 0.1, method=method)
    assert net.training
    assert net.drop.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))
    net.head.weight.grad = None


def test_displaced_weights_return_bit_for_bit_after_an_error() -> None:
    net = nn.Linear(7, 3)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    offset = torch.randn(24, generator=generator(), dtype=torch.float64)
    expected = nn.utils.parameters_to_vector(before.values()) + offset.float()
    found = []

    def stop() -> None:
        with displaced(net, offset) as moved:
            found.append(nn.utils.parameters_to_vector(moved.parameters()).detach())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert torch.equal(found[0], expected)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    with pytest.raises(ValueError, match="24 chosen parameters"), displaced(net, offset[:3]):
        pass


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


def test_small_images_are_evaluated_many_at_once_and_large_ones_few() -> None:
    sizes = {(3, 32, 32): 64, (1, 28, 28): 250, (3, 224, 224): 64, (1, 8, 8): 1024, (4,): 1024}
    assert {shape: usual_batch(torch.zeros(2, *shape)) for shape in sizes} == sizes


def test_bad_input_is_answered_in_a_sentence() -> None:
    x, y, q = torch.randn(6, 3, generator=generator()), torch.tensor([0, 1, 2, 0, 1, 2]), torch.eye(12)[:2]
    net = nn.Linear(3, 3)

    def refused(match: str, *args, **options) -> None:
        with pytest.raises(ValueError, match=match):
            measure_sensitivity(*args, **options)

    refused("Class 2 has no image", net, q, x[:2], y[:2], 0.1)
    refused("float16", copy.deepcopy(net).half(), q, x, y, 0.1)
    refused("one tensor", Pair(3, 3), q, x, y, 0.1)
    refused("unit rows", net, 2 * q, x, y, 0.1)
    refused("rows of 12", net, q[:, :5], x, y, 0.1)
    refused(r"rows of 12 floats.*found ndarray", net, q.numpy(), x, y, 0.1)
    refused(r"rows of 12 floats.*torch.int64", net, q.long(), x, y, 0.1)
    refused("`images` must be a tensor.*ndarray", net, q, x.numpy(), y, 0.1)
    refused("`labels` must be a tensor.*list", net, q, x, y.tolist(), 0.1)
    refused(r"`model` fails on `images` of shape \(6, 2\)", net, q, x[:, :2], y, 0.1)
    refused("`batch` must be a whole number", net, q, x, y, 0.1, batch=2.5)
    refused("positive", net, q, x, y, 0.0)
    refused("finite", net, q, x, y, float("nan"))
    refused("without curvature", net, q, x, y, 0.1, torch.tensor([1.0, 0.0]))
    refused("must be finite", net, q, x * float("inf"), y, 0.1)
    refused("share in", net, q, x, y, 0.1, audit=0.0, method="screened")
    refused("Did you mean", net, q, x, y, 0.1, method="exacts")
    refused("3 logits", net, q, x, y, 0.1, classes=4)
    refused("0..2", net, q, x, y + 1, 0.1)
    overflow = measure_sensitivity(net, q, 100 * x, y, 3e38, method="exact")  # wrong at both ends
    assert not overflow.flips.any()
