"""Class weights and guards against the published formulas written out by hand."""

import math

import pytest
import torch

from lt_lib.surgery import allowed_change, class_pressure, guard_preset, suggest_power

A = [0.9, 0.6, 0.5]


@pytest.mark.parametrize(
    ("power", "kind", "expected"),
    [
        (1, "error", [0.1, 0.4, 0.5]),
        (2, "error", [0.01 / 0.42, 0.16 / 0.42, 0.25 / 0.42]),
        (0, "error", [1 / 3, 1 / 3, 1 / 3]),
        (1, "gap", [0, 3 / 7, 4 / 7]),
        (0.5, "gap", [0, math.sqrt(3) / (2 + math.sqrt(3)), 2 / (2 + math.sqrt(3))]),
    ],
)
def test_weights_written_out(power: float, kind: str, expected: list[float]) -> None:
    found = class_pressure(A, power, kind)
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-6, atol=1e-12)
    assert float(found.sum()) == pytest.approx(1)


def test_tiny_errors_do_not_underflow() -> None:
    found = class_pressure([1 - 1e-8, 1 - 2e-8], power=60)
    assert float(found[1]) == pytest.approx(1)
    assert class_pressure([1.0, 0.5])[0] == 0


def test_perfect_classes_press_as_the_others_at_power_zero() -> None:
    assert class_pressure([1.0, 1.0], power=0).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("accuracy", "aim", "power"),
    [
        ([0.931, 0.69], "sigma", 2.0),  # CIFAR-10: the published ratio of 4.4
        ([0.931, 0.69], "worst", 1.0),
        ([0.859, 0.1], "sigma", 0.5),  # ISIC-2019: 6.4
        ([0.859, 0.1], "worst", 0.0),
        ([0.875, 0.375], "sigma", 0.5),  # exactly 5 (in binary): no longer below
        ([1.0, 0.9], "sigma", 0.5),
    ],
)
def test_rule_for_the_exponent(accuracy: list[float], aim: str, power: float) -> None:
    assert suggest_power(accuracy, aim) == power


def test_nothing_to_lift_is_said() -> None:
    with pytest.raises(ValueError, match="Every class has accuracy 1"):
        class_pressure([1.0, 1.0])
    with pytest.raises(ValueError, match=r"All 3 classes have the same accuracy, 0.7"):
        class_pressure([0.7, 0.7, 0.7], kind="gap")
    with pytest.raises(ValueError, match="no ratio"):
        suggest_power([1.0, 1.0])
    with pytest.raises(ValueError, match=r"must lie in 0\.\.1; found -0.25 for class 1"):
        suggest_power([0.75, -0.25])
    with pytest.raises(ValueError, match="`power` must be a finite number of at least 0; found -1"):
        class_pressure(A, -1)
    with pytest.raises(ValueError, match="Class 1 has no accuracy in `accuracy`"):
        class_pressure([0.5, math.nan])
    with pytest.raises(ValueError, match="`kind` must be one of error, gap"):
        class_pressure(A, kind="errors")


def test_only_classes_above_the_limit_are_guarded() -> None:
    floors = allowed_change([0.85, 0.86, 0.2])
    assert floors.tolist() == [-math.inf, -0.01, -math.inf]  # 0.85 itself is not above 0.85


def test_guard_of_the_exponents_runs() -> None:
    preset = guard_preset("ablation", iterations=15)
    assert preset["max_loss"] == pytest.approx(0.004)
    floors = allowed_change([0.6, 0.9, 0.7], baseline=[0.71, 0.69, 0.70], **preset)
    torch.testing.assert_close(floors, torch.tensor([-0.004, -0.03, -0.03]).double())


def test_guard_against_the_untouched_model() -> None:
    floors = allowed_change([0.87, 0.95, 0.5], baseline=[0.90, 0.90, 0.6], **guard_preset("cumulative"))
    torch.testing.assert_close(floors, torch.tensor([0.02, -0.06, -math.inf]).double())


def test_guard_as_written_needs_no_baseline() -> None:
    assert torch.equal(allowed_change(A, **guard_preset("as_written")), allowed_change(A))
    with pytest.raises(ValueError, match="`iterations` must be at least 1"):
        guard_preset("ablation", 0)
    with pytest.raises(ValueError, match="must be one of ablation, as_written, cumulative"):
        guard_preset("written")
