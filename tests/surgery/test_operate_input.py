"""What surgery refuses, in one sentence, with the model untouched; and what it cannot be given at all."""

import inspect

import pytest
import torch
from torch import nn
from toy_surgery import CLASSES, bits, clusters, config, data, same_bits, trained_net

from lt_lib.curvature import UnconvergedWarning
from lt_lib.data import Part, Split
from lt_lib.surgery.acceptance import judge
from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.data import Calibration, HessianImages, check_disjoint
from lt_lib.surgery.deflated import deflated_operate
from lt_lib.surgery.loop import operate
from lt_lib.surgery.sensitivity import measure_sensitivity


def refused(net: nn.Module, kind: type[Exception], said: str, hessian=None, calibration=None, **over) -> None:
    start, mine = bits(net), data(next(net.parameters()).dtype)
    with pytest.raises(kind, match=said):
        operate(net, hessian or mine[0], calibration or mine[1], config(**over))
    assert same_bits(bits(net), start)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = trained_net()

    def forward(self, x):
        return self.net(x), x


def test_bad_models_and_data_leave_the_model_untouched() -> None:
    net, (hessian, calibration) = trained_net(), data()
    refused(trained_net().half(), ValueError, "half|float16")
    refused(Pair(), ValueError, "one tensor")
    refused(net, ValueError, "disjoint; found 64", calibration=Calibration(hessian.images, hessian.labels, 4))
    six = Calibration(
        torch.cat([calibration.images, calibration.images[:5] + 1]),
        torch.cat([calibration.labels, torch.full((5,), 4)]),
        5,
    )
    refused(net, ValueError, r"logits \(n, 5\)", calibration=six)
    broken = trained_net()
    with torch.no_grad():
        broken[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        operate(broken, hessian, calibration, config())
    with pytest.raises(ValueError, match="`HessianImages`"):
        operate(net, (hessian.images, hessian.labels), calibration, config())


def test_a_preset_wants_a_number_of_classes_and_progress_a_function() -> None:
    for preset in (SurgeryConfig.as_written, SurgeryConfig.as_released, SurgeryConfig.differentiable):
        for classes in ("10", 1, 2.5, None):
            with pytest.raises(ValueError, match="`classes` must be a whole number of at least 2"):
                preset(classes)
    assert SurgeryConfig.as_written(torch.tensor(10)).spikes == 9
    net, parts = trained_net(), data()
    with pytest.raises(ValueError, match="`progress` must be a function"):
        operate(net, *parts, config(), progress=3)
    for audit in ("0.1", None):
        with pytest.raises(ValueError, match="`audit` must be"):
            measure_sensitivity(
                net,
                torch.eye(1, sum(p.numel() for p in net.parameters())),
                parts[1].images,
                parts[1].labels,
                0.1,
                audit=audit,
            )


def test_a_perfect_model_has_nothing_to_lift() -> None:
    net, (_, calibration) = trained_net(), data()
    with torch.no_grad():
        predicted = net.eval()(calibration.images).argmax(1)
    sure = Calibration(calibration.images, predicted, CLASSES)
    refused(net, ValueError, "nothing to lift", calibration=sure)


def test_a_class_without_calibration_images_is_named() -> None:
    images, labels = clusters(40, seed=5)
    keep = labels != 2
    with pytest.raises(ValueError, match="Class 2 has no calibration image"):
        Calibration(images[keep], labels[keep], CLASSES)


def test_pairs_without_a_certificate_are_never_used() -> None:
    net = trained_net()
    refused(net, RuntimeError, r"3 spikes are wanted.*pair \d", max_products=4, tol=1e-9)
    start, (hessian, calibration) = bits(net), data()
    with pytest.warns(UnconvergedWarning, match="The others are used"):
        done = operate(
            net,
            hessian,
            calibration,
            config(max_products=9, tol=1e-4, iterations=1, unconverged="drop", spikes=8),
        )
    (step,) = done.trace
    assert step.dropped >= 1
    assert len(step.values) + step.dropped == 8
    assert bool(step.converged.all())
    assert bool((step.residuals <= 1e-4).all())
    done.restore()
    assert same_bits(bits(net), start)


def test_more_spikes_than_positive_eigenvalues_are_refused() -> None:
    for seed in range(8):  # the fourth value is zero up to rounding, of either sign
        torch.manual_seed(seed)
        head = nn.Linear(6, CLASSES).double()  # the Hessian in the bias has rank C - 1
        refused(head, RuntimeError, "only 3 eigenpairs are positive", spikes=4, params="bias")


def test_all_classes_strong_are_answered_in_words() -> None:
    net, (hessian, calibration) = trained_net(), data()
    start = bits(net)
    guarded = {"strong": 0.0, "max_loss": 0.0}
    done = operate(net, hessian, calibration, config(**guarded, eps=0.1, eps_unit="length"))
    (step,) = done.trace  # the next would be the same, whatever its radius
    assert "All 4 classes are guarded. The step is zero" in step.solved
    assert done.stopped == step.reason == step.solved
    assert not step.accepted
    assert same_bits(bits(net), start)
    # probes of the budget's length see other sensitivities next time
    done = operate(net, hessian, calibration, config(**guarded, amplitude="gamma"))
    assert len(done.trace) > 1
    assert done.trace[1].radius < done.trace[0].radius
    assert done.trace[1].products == 0


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"radius": 0.0}, "`radius` must be positive"),
        ({"radius": float("nan")}, "`radius` must be positive"),
        ({"minimum": 1.0}, "`minimum` must be at most"),
        ({"iterations": 0}, "`iterations`"),
        ({"spikes": 2.5}, "`spikes` must be a whole number"),
        ({"amplitude": "adam"}, "`amplitude` must be one of"),
        ({"directions": "spike"}, "Did you mean `spikes`"),
        ({"betas": (0.9, 1.0)}, "`betas`"),
        ({"strong": 85}, r"`strong` must be in 0..1"),
    ],
)
def test_bad_settings_are_refused(over: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config(**over)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean `radius`"):
        SurgeryConfig.from_dict({"radios": 1})


def test_directions_that_are_not_orthonormal_are_refused() -> None:
    net = trained_net()
    size = sum(p.numel() for p in net.parameters())
    refused(net, ValueError, "orthonormal", directions=torch.ones(2, size, dtype=torch.float64))
    refused(net, ValueError, "rows", directions=torch.ones(2, 3))


def split(shared: int = 0) -> Split:
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> Part:
        pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
        return Part(pixels, torch.arange(count) % 3, torch.arange(count))

    train, calibration, test = part(60), part(30), part(30)
    pixels = calibration.images.clone()
    pixels[:shared] = test.images[:shared]
    return Split("toy", train, Part(pixels, calibration.labels, calibration.index), test, ("a", "b", "c"), "")


def test_a_split_gives_its_train_and_calibration_parts_alone() -> None:
    parts = split()
    hessian, calibration = HessianImages.from_split(parts, 24, seed=1), Calibration.from_split(parts)
    mean, std = (f(parts.train.images.double() / 255) for f in (torch.mean, lambda x: x.std(correction=0)))
    train = ((parts.train.images.double() / 255) - mean) / std
    matches = [(train - image).abs().amax((1, 2, 3)).min() for image in hessian.images]
    assert float(max(matches)) < 1e-5
    assert len(hessian) == 24
    expected = (parts.calibration.images.double() / 255 - mean) / std
    assert torch.allclose(calibration.images.double(), expected, atol=1e-5)
    again = HessianImages.from_split(parts, 24, seed=1)
    assert torch.equal(again.images, hessian.images)
    assert not torch.equal(HessianImages.from_split(parts, 24, seed=2).images, hessian.images)
    balanced = HessianImages.from_split(parts, 24, balanced=True)
    assert torch.bincount(balanced.labels).tolist() == [8, 8, 8]


def test_calibration_images_that_are_test_images_are_refused_or_dropped() -> None:
    with pytest.raises(ValueError, match="2 of the 30 calibration images are also in the test part"):
        Calibration.from_split(split(shared=2))
    assert len(Calibration.from_split(split(shared=2), drop_shared=True)) == 28
    hessian, calibration = data()
    check_disjoint(hessian, calibration, clusters(50, seed=9)[0])
    with pytest.raises(ValueError, match="calibration images and the test images"):
        check_disjoint(hessian, calibration, calibration.images[3:5])


def test_the_test_set_has_no_way_into_the_loop() -> None:
    for function in (operate, deflated_operate):
        taken = inspect.signature(function).parameters
        assert [name for name in taken if "test" in name or "split" in name] == []
    assert list(inspect.signature(operate).parameters)[:3] == ["model", "hessian", "calibration"]
    parts = split()
    seen = Calibration.from_split(parts), HessianImages.from_split(parts, 60)
    test = (parts.test.images.double() / 255 - parts.train.images.double().mean() / 255).flatten(1)
    for one in seen:
        scale = one.images.double().flatten(1)
        closeness = torch.nn.functional.cosine_similarity(scale[:, None], test[None], dim=2)
        assert float(closeness.max()) < 0.99


def test_the_verdict_follows_the_papers_rule_at_its_bounds() -> None:
    level = [0.9, 0.9, 0.9, 0.9]
    assert judge([0.93, 0.5], [0.86, 0.5]).accepted  # exactly 7 points, which rounding makes more
    refused = judge([0.93, 0.5], [0.85, 0.5])
    assert not refused.accepted
    assert "class 0 lost 0.0800" in refused.reason
    assert judge([0.93, 0.5], [0.85, 0.5], drop=None).accepted
    wider = [0.905, 0.895, 0.905, 0.895]  # sigma 0.005 exactly
    assert judge(level, wider).accepted
    assert not judge(level, [0.906, 0.894, 0.906, 0.894]).accepted
    assert judge(level, [0.906, 0.894, 0.906, 0.894], sigma=None).accepted
    with pytest.raises(ValueError, match="finite"):
        judge(level, [0.9, 0.9, 0.9, float("nan")])
