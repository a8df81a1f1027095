"""What a Hessian operator leaves alone, and what it refuses."""

import gc

import psutil
import pytest
import torch
from small_curvature import conv_net, images, labels, normal
from torch import nn

from lt_lib.curvature import GaussNewtonOperator, HessianOperator, lanczos
from lt_lib.losses import make_loss


def state_of(net, loss):
    tensors = {n: t.clone() for n, t in [*net.state_dict().items(), *loss.state_dict().items()]}
    return (
        tensors,
        [m.training for m in net.modules()],
        [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in net.parameters()],
        [p.data_ptr() for p in net.parameters()],
        torch.random.get_rng_state(),
    )


def assert_same(before, after):
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(before[0][n], after[0][n]) for n in before[0])
    assert before[1] == after[1]
    assert all(a[0] == b[0] for a, b in zip(before[2], after[2], strict=True))
    assert all((a[1] is None) == (b[1] is None) for a, b in zip(before[2], after[2], strict=True))
    assert all(a[1] is None or torch.equal(a[1], b[1]) for a, b in zip(before[2], after[2], strict=True))
    assert before[3] == after[3]
    assert torch.equal(before[4], after[4])


def half_trained_net():
    net = conv_net(torch.float32).train()
    net.bn2.eval()
    net.conv1.weight.requires_grad_(False)
    net.head(torch.ones(1, 4)).sum().backward()
    return net


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator])
@pytest.mark.parametrize("method", ["retained", "recompute", "forward_over_reverse"])
def test_the_model_and_the_loss_stay_bit_identical(kind, method):  # guards D26, P3
    # transforms of torch.func cannot run losses that keep state, here running losses in buffers
    name = "class_balanced" if method == "forward_over_reverse" else "inverse"
    net, loss = half_trained_net(), make_loss(name, [20, 10, 5, 2])
    before = state_of(net, loss)
    with torch.no_grad():
        operator = kind(net, images(5, torch.float32), labels(5), loss=loss, params="*", method=method)
        operator.matvec(torch.ones(operator.size))
    assert_same(before, state_of(net, loss))


def test_the_model_stays_as_it_was_after_an_exception():
    net, loss = half_trained_net(), make_loss("ce", [20, 10, 5, 2])
    before = state_of(net, loss)
    with pytest.raises(RuntimeError):
        HessianOperator(net, images(5, torch.float32)[:, :2], labels(5), loss=loss)
    with pytest.raises(ValueError, match=r"must be 0\.\.3"):
        HessianOperator(net, images(5, torch.float32), labels(5) + 9, loss=loss)
    assert_same(before, state_of(net, loss))


def test_an_operator_keeps_the_weights_it_was_built_with():
    net, x, y = conv_net(), images(4), labels(4)
    operators = [HessianOperator(net, x, y, method=m) for m in ("retained", "recompute")]
    v = normal(operators[0].size, seed=3)
    before = operators[0].matvec(v)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
        for buffer in net.buffers():
            buffer.mul_(2)
    for operator in operators:
        torch.testing.assert_close(operator.matvec(v), before)
    assert not torch.allclose(HessianOperator(net, x, y).matvec(v), before)


def test_autocast_and_inference_mode_do_not_reach_a_product():
    net, x, y = conv_net(torch.float32), images(4, torch.float32), labels(4)
    v = normal(HessianOperator(net, x, y).size, seed=3).float()
    plain = HessianOperator(net, x, y).matvec(v)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert torch.equal(HessianOperator(net, x, y).matvec(v), plain)


def test_memory_stays_flat_over_200_products():  # guards D31
    # few operations, many parameters: one vector kept at each product would be 28 MB
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten())
    net.append(nn.Linear(128, 256)).append(nn.Tanh()).append(nn.Linear(256, 4))
    x, y, process = images(4, torch.float32), labels(4), psutil.Process()
    operators = [HessianOperator(net, x, y, method=m) for m in ("retained", "recompute")]
    v = torch.ones(operators[0].size)
    for operator in operators:
        for _ in range(20):
            operator.matvec(v)
        gc.collect()
        objects, before = len(gc.get_objects()), process.memory_info().rss
        gc.disable()  # a cycle would wait for the collector
        try:
            for _ in range(200):
                operator.matvec(v)
        finally:
            gc.enable()
        assert len(gc.get_objects()) < objects + 500
        assert process.memory_info().rss < before + 8 * 2**20


def test_a_small_limit_recomputes_in_micro_batches():
    net, x, y = conv_net(), images(12), labels(12)
    small = HessianOperator(net, x, y, memory_limit=60_000)
    assert small.method == "recompute"
    assert small.micro_batch == 2
    large = HessianOperator(net, x, y)
    assert large.method == "retained"
    v = normal(large.size, seed=3)
    torch.testing.assert_close(small.matvec(v), large.matvec(v), rtol=1e-8, atol=1e-12)


def test_large_weights_do_not_count_once_an_image():
    # BatchNorm folds into the convolution: a graph holds copies of its 0.6 MB of weights, once for all images
    wide = nn.Sequential(nn.Conv2d(128, 128, 3), nn.BatchNorm2d(128), nn.Flatten(), nn.Linear(128, 2))
    x, y = normal(64, 128, 3, 3).float(), labels(64, 2)
    assert HessianOperator(wide, x, y, memory_limit=16 * 2**20).method == "retained"


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator])
def test_a_loss_that_mixes_samples_is_not_split(kind):
    net, x, y = conv_net(), images(9), labels(9)
    mixing = make_loss("class_mean", [20, 10, 5, 2])
    for size in (None, 9, 20):
        kind(net, x, y, loss=mixing, micro_batch=size)
    with pytest.raises(ValueError, match="mixes the samples"):
        kind(net, x, y, loss=mixing, micro_batch=4)
    with pytest.raises(ValueError, match="mixes the samples"):
        kind(net, x, y, loss=make_loss("inverse", [20, 10, 5, 2]), memory_limit=40_000)
    for name in ("focal", "balanced_softmax", "inverse_frequency"):
        kind(net, x, y, loss=make_loss(name, [20, 10, 5, 2]), micro_batch=4)


def test_data_parallel_wrappers_are_taken_off():  # guards D35
    net, x, y = conv_net(), images(3), labels(3)
    assert HessianOperator(nn.DataParallel(net), x, y).names == HessianOperator(net, x, y).names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):  # guards D37
    with pytest.raises(ValueError, match="float32 or float64"):
        HessianOperator(conv_net(dtype), images(3, dtype), labels(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": images(3).to(torch.uint8)}, "normalised"),
        ({"labels": labels(4)}, "equally many"),
        ({"params": "nothing.*"}, "matches no parameter"),
        ({"params": []}, "name some parameters"),
        ({"method": "linearise"}, "linearize"),
        ({"micro_batch": 0}, "whole number of at least 1"),
        ({"normaliser": 0.0}, "positive"),
        ({"loss": "focal"}, "`loss` must be"),
        ({"loss": lambda outputs, labels: outputs.sum()}, "one term a sample"),
    ],
)
def test_bad_arguments_get_a_sentence(change, message):
    given = {"model": conv_net(), "images": images(3), "labels": labels(3)} | change
    with pytest.raises(ValueError, match=message):
        HessianOperator(**given)


def test_models_that_cannot_be_measured_get_a_sentence():
    net = conv_net()
    net.bn1 = nn.BatchNorm2d(4, track_running_stats=False).double()
    with pytest.raises(ValueError, match="`bn1` keeps no running statistics"):
        HessianOperator(net, images(3), labels(3))
    net = conv_net().requires_grad_(False)
    with pytest.raises(ValueError, match="requires gradients"):
        HessianOperator(net, images(3), labels(3))
    net = conv_net()
    net.head.float()
    with pytest.raises(ValueError, match="share one dtype"):
        HessianOperator(net, images(3), labels(3))
    operator = HessianOperator(conv_net(), images(3), labels(3))
    with pytest.raises(ValueError, match="must be of shape"):
        operator.matvec(torch.ones(operator.size + 1))


def test_products_that_are_not_finite_stop_a_run():
    net = conv_net(torch.float32)
    net.head.weight.data[0, 0] = float("nan")
    operator = HessianOperator(net, images(3, torch.float32), labels(3))
    with pytest.raises(ValueError, match="must be finite"):
        lanczos(operator, 2)
