"""Networks, data and callbacks that go out of their way: a sentence each, and the network as it was."""

import copy

import pytest
import torch
from torch import Tensor, nn
from toy_surgery import CLASSES, bits, config, data, same_bits, trained_net

from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages, check_disjoint
from lt_lib.surgery.loop import operate
from lt_lib.surgery.soft import soft_sensitivity
from lt_lib.surgery.state import SurgeryState

HESSIAN, CALIBRATION = data()
SETTINGS = config(iterations=1)


class Counting(nn.Module):
    """A network that counts its calls in place, and keeps a running mean by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.net = trained_net()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(6).double())

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.net(x)


@pytest.mark.parametrize(
    "over", [{"method": "screened"}, {"method": "soft"}, {"directions": "class_gradients"}]
)
def test_buffers_that_the_forward_pass_writes_stay_as_they_were(over: dict) -> None:
    net = Counting()
    start, buffers = bits(net), list(net.buffers())
    operate(net, HESSIAN, CALIBRATION, config(iterations=1, **over)).restore()
    assert same_bits(bits(net), start)
    assert all(now is then for now, then in zip(net.buffers(), buffers, strict=True))


def test_forward_mode_says_what_it_cannot_run() -> None:
    net = Counting()
    start = bits(net)
    with pytest.raises(ValueError, match=r"Forward-mode products of `model` fail.*\"screened\""):
        operate(net, HESSIAN, CALIBRATION, config(iterations=1, method="forward"))
    assert same_bits(bits(net), start)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, CLASSES)).double()


def without_statistics() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 4)
    ).double()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": lambda x: x}, "`model` must be a `Module`; found function"),
        ({"model": lazy()}, "`0.weight` of `model` is not initialised"),
        ({"model": without_statistics()}, "BatchNorm `1` keeps no running statistics"),
        ({"hessian": CALIBRATION}, "`hessian` must be a `HessianImages`; found Calibration"),
        ({"calibration": HESSIAN}, "`calibration` must be a `Calibration`"),
        ({"config": {"iterations": 3}}, "`config` must be a `SurgeryConfig`; found dict"),
        ({"state": {}}, "`state` must be a `SurgeryState`; found dict"),
        ({"state": SurgeryState({}, {"format": 2})}, "`state` is not whole: its record lacks `config`"),
        ({"hessian": HessianImages(HESSIAN.images, HESSIAN.labels + 1)}, r"Hessian images` must be 0\.\.3"),
        (
            {"hessian": HessianImages(HESSIAN.images[:, :5], HESSIAN.labels)},
            r"of the Hessian images, .*\(1, 5\)",
        ),
        (
            {"calibration": Calibration(CALIBRATION.images[:, :5], CALIBRATION.labels, 4)},
            r"of the calibration images, .*\(1, 5\)",
        ),
        # single precision on one side does not hide an image that both sets hold
        (
            {"hessian": HessianImages(CALIBRATION.images[:9].float(), CALIBRATION.labels[:9])},
            "found 9 that are",
        ),
        ({"config": config(spikes=500)}, "`spikes` must be at most 108"),
        ({"model": trained_net().bfloat16()}, "bfloat16"),
    ],
)
def test_what_cannot_be_operated_is_refused_in_words(change: dict, said: str) -> None:
    given = {"model": trained_net(), "hessian": HESSIAN, "calibration": CALIBRATION, "config": SETTINGS}
    with pytest.raises(ValueError, match=said):
        operate(**(given | change))


def test_sets_that_are_no_sets_of_images_are_refused() -> None:
    images, labels = CALIBRATION.images, CALIBRATION.labels
    with pytest.raises(ValueError, match=r"`classes` must be a whole number.*found 4\.0"):
        Calibration(images, labels, 4.0)
    with pytest.raises(ValueError, match=r"found shapes \(\) and \(\)"):
        HessianImages(torch.tensor(1.0), torch.tensor(1))
    with pytest.raises(ValueError, match=r"test images must be a tensor.*ndarray"):
        check_disjoint(HESSIAN, CALIBRATION, images.numpy())
    with pytest.raises(ValueError, match="found 4 that are in both"):
        check_disjoint(HESSIAN, CALIBRATION, CALIBRATION.images[:4].bfloat16())
    with pytest.raises(ValueError, match="test images are pixels in uint8"):
        check_disjoint(HESSIAN, CALIBRATION, torch.zeros(2, 6, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"radius": "0.1"}, "`radius` must be positive and finite.*found '0.1'"),
        ({"eps": True}, "`eps` must be positive"),
        ({"betas": (0.9,)}, "`betas` must be two numbers"),
        ({"betas": "ab"}, "`betas` must be two numbers"),
    ],
)
def test_settings_of_the_wrong_type_are_refused(over: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SurgeryConfig(**over)


def test_labels_and_images_of_any_width_give_the_same_surgery() -> None:
    nets = [trained_net(torch.float32) for _ in range(2)]
    narrow = [part.images.bfloat16() for part in (HESSIAN, CALIBRATION)]
    short = (
        HessianImages(narrow[0], HESSIAN.labels.int()),
        Calibration(narrow[1], CALIBRATION.labels.to(torch.uint8), 4),
    )
    long = (
        HessianImages(narrow[0].float(), HESSIAN.labels),
        Calibration(narrow[1].float(), CALIBRATION.labels, 4),
    )
    traces = [operate(net, *parts, SETTINGS).trace for net, parts in zip(nets, (short, long), strict=True)]
    assert traces[0] == traces[1]
    assert same_bits(bits(nets[0]), bits(nets[1]))


def test_a_callback_that_trains_on_is_found_out_and_undone() -> None:
    net = trained_net()
    start = bits(net)

    def train_on(step: object) -> None:
        with torch.no_grad():
            net[0].weight.add_(0.01)

    with pytest.raises(ValueError, match="`progress` changed weights or buffers"):
        operate(net, HESSIAN, CALIBRATION, config(), train_on)
    assert same_bits(bits(net), start)


def test_a_callback_that_moves_buffers_is_found_out_and_undone() -> None:
    net = trained_net()
    net.register_buffer("mean", torch.zeros(2).double())
    with pytest.raises(ValueError, match="`progress` changed weights or buffers"):
        operate(net, HESSIAN, CALIBRATION, config(), lambda step: net.mean.add_(1))
    assert not net.mean.any()


def interrupt(step: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_gives_the_first_weights_back() -> None:
    net = trained_net()
    start = bits(net)
    with pytest.raises(KeyboardInterrupt):
        operate(net, HESSIAN, CALIBRATION, config(), interrupt)
    assert same_bits(bits(net), start)


def test_restore_finds_a_layer_that_was_put_in_place_of_another() -> None:
    net = trained_net()
    start = bits(net)
    done = operate(net, HESSIAN, CALIBRATION, SETTINGS)
    net[4] = copy.deepcopy(net[4])
    nn.init.ones_(net[4].weight)
    done.restore()
    done.restore()
    assert same_bits(bits(net), start)
    net.half()
    with pytest.raises(ValueError, match=r"float64, which parameters of torch.float16 cannot"):
        done.restore()
    net[4] = nn.Tanh()
    with pytest.raises(ValueError, match=r"no longer has the parameter `4.weight`"):
        done.restore()


class NanForSome(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = trained_net()

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 1.5, torch.nan, self.net(x))


def test_logits_that_are_nan_for_some_images_stop_soft_sensitivities() -> None:
    size = sum(p.numel() for p in trained_net().parameters())
    with pytest.raises(ValueError, match="logits` must be finite"):
        soft_sensitivity(NanForSome(), torch.eye(size)[:2], CALIBRATION.images, CALIBRATION.labels)
