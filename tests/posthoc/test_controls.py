"""Corrections by name: each is the function that its name stands for, from the calibration images alone."""

import pytest
import torch

from lt_lib.posthoc import fit_logit_bias, logit_adjustment
from lt_lib.posthoc.controls import CONTROLS, Known, Outputs, control, new_last_layer
from lt_lib.posthoc.evaluation import evaluation

CLASSES, DIM = 4, 6
COUNTS = torch.tensor([80, 40, 10, 4])


def drawn(n: int, seed: int) -> tuple[Outputs, torch.Tensor]:
    """Gaussian classes seen by a head that favours frequent ones."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    features = 1.5 * torch.eye(CLASSES, DIM)[labels] + torch.randn(n, DIM, generator=generator)
    return Outputs(features @ weight().T + (COUNTS / COUNTS.sum()).log(), features), labels


def weight() -> torch.Tensor:
    return 1.5 * torch.eye(CLASSES, DIM)


@pytest.fixture
def case() -> tuple[Known, Outputs, torch.Tensor]:
    outputs, labels = drawn(400, 0)
    return Known(outputs, labels, COUNTS, weight()), *drawn(2000, 1)


@pytest.mark.parametrize("name", CONTROLS)
def test_every_control_lowers_sigma_and_only_the_level_rule_pays_in_balanced_accuracy(
    name: str, case: tuple[Known, Outputs, torch.Tensor]
) -> None:
    known, test, labels = case
    found = control(name, known, test)
    assert found.shape == test.logits.shape
    before, after = (evaluation(z, labels, CLASSES) for z in (test.logits, found))
    assert (after.balanced < before.balanced) if name == "level rule" else (after.balanced >= before.balanced)
    if name != "temperature":
        assert after.sigma < 0.7 * before.sigma


def test_names_stand_for_the_functions(case: tuple[Known, Outputs, torch.Tensor]) -> None:
    known, test, _ = case
    assert torch.equal(control("adjustment", known, test), logit_adjustment(test.logits, COUNTS, 1.0))
    fitted = fit_logit_bias(known.outputs.logits, known.labels)
    assert torch.equal(control("bias fit", known, test), fitted(test.logits))
    assert torch.equal(control("temperature", known, test).argmax(1), test.logits.argmax(1))
    assert torch.equal(control("last layer", known, test), new_last_layer(known, test, 0.01))


def test_unknown_names_and_absent_classes_are_refused(case: tuple[Known, Outputs, torch.Tensor]) -> None:
    known, test, _ = case
    with pytest.raises(ValueError, match="bias fit"):
        control("bias", known, test)
    few = Known(known.outputs, known.labels.clamp_max(2), COUNTS, weight())
    with pytest.raises(ValueError, match="labels"):
        control("adjustment", few, test)
