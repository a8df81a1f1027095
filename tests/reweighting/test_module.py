"""State and options of the module: presets, records, beta, counters, resuming, no waiting."""

import copy
import pickle

import pytest
import torch
from small_problem import COUNTS, example, module

from lt_lib.reweighting import InverseReweighting

LABELS = torch.tensor([0, 0, 0, 1, 1, 2])  # class 3 is absent
LOSSES = torch.tensor([1.0, 2.0, 3.0, 1.0, 3.0, 0.5])  # class means 2, 2, 0.5, mean 1.5


def small(**options):
    return InverseReweighting([40, 20, 10, 5], **options)


def weights(loss, sample_loss=LOSSES, labels=LABELS):
    return loss.weights(sample_loss, labels).tolist()


def test_the_presets_are_the_two_readings():
    written, released = small().as_written([5, 3]).options, small().as_released([5, 3]).options
    shared = {"mean": "class", "class_loss": "batch", "reduction": "sample", "gamma": 1.0, "macro": "epoch"}
    shared |= {"macro_reset": False, "macro_norm": "classes", "normalise": False, "count_before_start": False}
    only_written = {"alpha": 1.0, "through_weights": False, "clamp": None, "eps": 0.0, "start_epoch": 0}
    only_released = {"alpha": 0.0, "through_weights": True, "clamp": 10.0, "eps": 1e-8, "start_epoch": 0.8}
    for options, own in ((written, only_written), (released, only_released)):
        assert {name: getattr(options, name) for name in shared | own} == shared | own
    assert released.clamp_after_macro
    assert InverseReweighting.as_written([5, 3], alpha=0.2).options.alpha == 0.2
    assert InverseReweighting.as_released([5, 3], clamp=None).options.clamp is None


def test_weights_by_hand_and_the_prior_of_an_absent_class():
    assert weights(small()) == pytest.approx([0.75, 0.75, 3.0, 1.0])
    prior = torch.tensor([1 / 40, 1 / 20, 1 / 10, 1 / 5]) / 0.09375
    assert weights(small(prior="inverse"))[3] == pytest.approx(prior[3].item())
    expected = (1.5 * 0.5 + 0.1 * prior[2].item()) / (0.25 + 0.1)
    assert weights(small(prior="inverse", alpha=0.1))[2] == pytest.approx(expected)
    root = torch.tensor([40.0, 20, 10, 5]).pow(-0.5)
    assert small(prior="inverse_sqrt").prior.tolist() == pytest.approx((root / root.mean()).tolist())
    assert small(prior=[1, 2, 3, 2]).prior.tolist() == [0.5, 1.0, 1.5, 1.0]


def test_alpha_in_units_of_the_squared_mean_loss():
    relative = small(alpha=0.2, alpha_scale="loss", prior=[1, 3, 2, 2])
    assert weights(relative) == pytest.approx(
        weights(small(alpha=0.2 * 1.5**2, prior=[1, 3, 2, 2]))  # the mean loss is 1.5
    )
    assert weights(relative, 1e-3 * LOSSES) == pytest.approx(weights(relative))
    assert weights(small(alpha_scale="loss")) == weights(small())
    assert weights(relative, 0 * LOSSES) == relative.prior.tolist()
    with pytest.raises(ValueError, match="`alpha_scale`"):
        small(alpha_scale="relative")


def test_the_scale_of_alpha_is_a_constant_for_the_gradient():
    slopes = []
    for options in ({"alpha": 0.2, "alpha_scale": "loss"}, {"alpha": 0.2 * 1.5**2}):
        sample = LOSSES.clone().requires_grad_()
        (slope,) = torch.autograd.grad(small(**options).apply_weights(sample, LABELS), sample)
        slopes.append(slope.tolist())
    assert slopes[0] == pytest.approx(slopes[1])


def test_clamp_after_or_before_the_macro_factor_and_normalisation():
    for after, last in ((True, 2.0), (False, 1.0)):
        loss = small(clamp=2.0, clamp_after_macro=after)
        loss.macro.copy_(torch.tensor([1.0, 1.0, 0.5 if not after else 2.0, 1.0]))
        assert weights(loss)[:3] == pytest.approx([0.75, 0.75, last])
    assert weights(small(normalise=True))[:3] == pytest.approx([0.5, 0.5, 2.0])


def test_a_zero_class_loss_falls_back_to_the_prior_and_is_counted():
    sample = torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.5], requires_grad=True)
    loss = small(prior=[1, 3, 2, 2])
    value = loss.apply_weights(sample, LABELS)
    (slope,) = torch.autograd.grad(value, sample)
    assert torch.isfinite(slope).all()
    assert loss.diagnostics.fallbacks == 1
    assert weights(small(prior=[1, 3, 2, 2]), sample.detach())[1] == pytest.approx(1.5)
    assert weights(loss, torch.zeros(6))[:3] == pytest.approx([0.5, 1.5, 1.0])
    assert loss.diagnostics.fallbacks == 4
    confident = torch.full((2, 4), -200.0)
    confident[:, 0] = 200.0
    assert small()(confident, torch.tensor([0, 0])) == 0.0


def test_a_batch_of_one_class_is_plain_cross_entropy():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.full((5,), 2)
    expected = torch.nn.functional.cross_entropy(logits, labels)
    for options in ({}, {"through_weights": False}, {"alpha": 0.5}, {"reduction": "class"}):
        assert small(**options)(logits, labels).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("reduction", ["sample", "class"])
def test_terms_without_reduction_have_the_loss_as_their_mean(reduction):
    inputs, weight, labels = example()
    loss = module(reduction=reduction, alpha=0.1)
    terms = loss(inputs @ weight.T, labels, reduction="none")
    assert terms.shape == (64,)
    assert terms.mean().item() == pytest.approx(loss(inputs @ weight.T, labels).item(), rel=1e-13)


def test_beta_is_counted_only_while_reweighting_and_refreshed_when_an_epoch_starts():
    loss = InverseReweighting.as_released([40, 20, 10, 5])
    assert not loss.active  # before set_epoch nothing is known of the epochs
    seen = []
    for epoch in range(10):
        loss.set_epoch(epoch, 10)
        assert loss.active == (epoch >= 8)
        for labels in ([0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 1, 1]):
            value = loss.apply_weights(torch.ones(3), torch.tensor(labels))
            if not loss.active:
                assert value == 1.0
        seen.append((loss.batch_counts.tolist(), loss.macro.tolist()))
    assert seen[7] == ([0, 0, 0, 0], [1, 1, 1, 1])
    assert seen[8] == ([4, 3, 1, 0], [1, 1, 1, 1])  # beta acts from the second reweighted epoch
    raw = torch.tensor([1 / 4, 1 / 3, 1.0, 1.0])
    assert seen[9][0] == [8, 6, 2, 0]
    assert seen[9][1] == pytest.approx((raw / raw.mean()).tolist())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"macro_norm": "none"}, [1 / 2, 1.0, 1.0, 1.0]),
        ({"macro_norm": "samples"}, [75 / 110, 150 / 110, 150 / 110, 150 / 110]),
        ({"macro_norm": "none", "gamma": 2.0}, [1 / 4, 1.0, 1.0, 1.0]),
        ({"macro": "off"}, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_norm_and_power_of_beta(options, expected):
    loss = small(**options)
    for labels in ([0, 0], [0, 1]):
        loss.apply_weights(torch.ones(2), torch.tensor(labels))
    loss.set_epoch(0, 2)
    assert loss.macro.tolist() == pytest.approx(expected)


def test_beta_by_step_reset_and_counting_before_the_start():
    loss = small(macro="step", macro_norm="none")
    for labels in ([0, 0], [0, 1]):
        loss.apply_weights(torch.ones(2), torch.tensor(labels))
    assert loss.macro.tolist() == [0.5, 1.0, 1.0, 1.0]
    loss = small(macro_reset=True, macro_norm="none", start_epoch=1, count_before_start=True)
    for epoch, expected in enumerate([[1.0, 1, 1, 1], [1 / 3, 1 / 2, 1, 1], [1 / 3, 1 / 2, 1, 1]]):
        loss.set_epoch(epoch, 3)
        assert loss.macro.tolist() == pytest.approx(expected)
        for labels in ([0, 0], [0, 1], [0, 1]):
            loss.apply_weights(torch.ones(2), torch.tensor(labels))


def test_running_class_losses_by_hand():
    loss = small(class_loss="running", momentum=0.75)
    first = loss.weights(LOSSES, LABELS)
    assert first.tolist() == pytest.approx([0.75, 0.75, 3.0, 1.0])
    sample = torch.tensor([6.0, 1.0], requires_grad=True)
    second = loss.weights(sample, torch.tensor([0, 3]))  # 0.75 * 2 + 0.25 * 6 = 3; class 3 new: 1; mean 2
    assert second.tolist() == pytest.approx([2 / 3, 1.0, 1.0, 2.0])
    (slope,) = torch.autograd.grad(second[0], sample)  # w_0 = (L_0 + L_3) / 2 L_0, dL_0 = 0.25, dL_3 = 1
    assert slope.tolist() == pytest.approx([-0.25 / (2 * 9), 1 / 6])
    assert loss.loss_record.value.tolist() == pytest.approx([3.0, 2.0, 0.5, 1.0])


def test_epoch_class_losses_are_those_of_the_epoch_before():
    loss = small(class_loss="epoch", start_epoch=1)
    loss.set_epoch(0, 3)
    loss.apply_weights(LOSSES, LABELS)
    loss.apply_weights(torch.tensor([7.0]), torch.tensor([1]))  # class 1: (1 + 3 + 7) / 3
    loss.set_epoch(1, 3)
    sample = torch.tensor([100.0, 100.0, 3.0], requires_grad=True)
    found = loss.weights(sample, torch.tensor([0, 1, 3]))
    mean = (2 + 11 / 3 + 3) / 3
    assert found.tolist() == pytest.approx([mean / 2, mean / (11 / 3), 1.0, mean / 3])


@pytest.mark.parametrize(
    ("mean", "later"), [("running", 0.9 * 1.5 + 0.1 * 4), ("epoch", 1.5), ("detached", 4.0)]
)
def test_constant_means_over_time(mean, later):
    loss = small(mean=mean)
    loss.set_epoch(0, 2)
    assert weights(loss)[0] == pytest.approx(0.75)
    loss.set_epoch(1, 2)
    sample = torch.tensor([4.0], requires_grad=True)
    found = loss.weights(sample, torch.tensor([0]))[0]
    assert found.item() == pytest.approx(later / 4)
    assert torch.autograd.grad(found, sample)[0].item() == pytest.approx(-later / 16)


def test_diagnostics_of_an_epoch():
    loss = small(clamp=2.0)
    loss.set_epoch(0, 2)
    loss.apply_weights(LOSSES, LABELS)
    loss.apply_weights(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]))
    assert loss.diagnostics.mean_weights()[:3].tolist() == pytest.approx([0.875, 0.875, 2.0])
    assert loss.diagnostics.mean_weights()[3].isnan()
    assert loss.diagnostics.clamped_shares() == pytest.approx((1 / 5, 1 / 8))
    loss.set_epoch(0, 2)  # the same epoch goes on
    assert loss.diagnostics.calls == 2
    assert loss.diagnostics.mean_weights()[0] == pytest.approx(0.875)
    loss.set_epoch(1, 2)
    assert loss.diagnostics.mean_weights().isnan().all()
    assert loss.diagnostics.calls == 2


EVERYTHING = {"class_loss": "running", "mean": "epoch", "clamp": 3.0, "macro": "step", "start_epoch": 0.25}


@pytest.mark.parametrize(
    "options", [EVERYTHING, {"class_loss": "epoch", "mean": "running", "macro_reset": True}]
)
def test_a_state_dict_in_mid_epoch_resumes_bit_for_bit(options):
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(16, 4, generator=generator), torch.randint(4, (16,), generator=generator))
        for _ in range(9)
    ]

    def steps(loss, numbers):
        values = []
        for number in numbers:
            loss.set_epoch(number // 3, 4)
            values.append(loss(*batches[number]).item())
        return values

    whole, part, resumed = small(**options), small(**options), small(**options)
    expected = steps(whole, range(9))
    head = steps(part, range(5))  # stops in the middle of the second epoch
    resumed.load_state_dict(copy.deepcopy(part.state_dict()))
    assert resumed.active == part.active
    assert head + steps(resumed, range(5, 9)) == expected
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    twin = pickle.loads(pickle.dumps(part))
    assert twin(*batches[5]).item() == expected[5]


def test_eval_mode_changes_no_state():
    loss = small(**EVERYTHING | {"start_epoch": 0})
    loss.apply_weights(LOSSES, LABELS)
    before = copy.deepcopy(loss.state_dict())
    loss.eval()
    loss.apply_weights(LOSSES + 1, LABELS)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


@pytest.mark.parametrize(
    "options", [{}, {"clamp": 10.0, "eps": 1e-8}, EVERYTHING | {"start_epoch": 0}, {"alpha": 1.0}]
)
def test_nothing_is_read_after_the_first_batch(options):
    # a tensor on "meta" has no values: reading one (item, bool, nonzero) raises
    loss = small(**options)
    loss.apply_weights(LOSSES, LABELS)
    loss.to("meta")
    logits = torch.empty(8, 4, device="meta", requires_grad=True)
    value = loss(logits, torch.empty(8, dtype=torch.int64, device="meta"))
    torch.autograd.grad(value, logits)
    with pytest.raises(RuntimeError, match="meta"):
        value.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision_agrees_with_float64(dtype):
    inputs, weight, labels = example()
    logits = (inputs @ weight.T).detach().to(dtype)
    exact = module(clamp=5.0, eps=1e-8)
    loss = InverseReweighting(COUNTS, clamp=5.0, eps=1e-8)
    loss.macro.copy_(exact.macro)
    value, expected = loss(logits, labels), exact(logits.double(), labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
