import math

import pytest
import torch
from torch.optim import lr_scheduler

from lt_lib.training import TrainConfig, learning_rate

STEPS = 7  # an epoch


def ours(config):
    return [learning_rate(config, step, STEPS) for step in range(config.epochs * STEPS)]


def oracle(config, build):
    """Rates of torch's scheduler for the same training."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
    scheduler = build(optimiser)
    rates = []
    for _ in range(config.epochs * STEPS):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def test_cosine_equals_torch():
    config = TrainConfig(epochs=5, lr=0.3)
    theirs = oracle(config, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5 * STEPS))
    assert ours(config) == pytest.approx(theirs, rel=1e-9)


def test_steps_equal_torch():
    config = TrainConfig(epochs=6, lr=0.3, schedule="step", milestones=(2, 5), decay=0.1)
    theirs = oracle(config, lambda o: lr_scheduler.MultiStepLR(o, [2 * STEPS, 5 * STEPS], gamma=0.1))
    assert ours(config) == pytest.approx(theirs, rel=1e-12)


def test_warm_up_then_cosine_equals_torch():
    config = TrainConfig(epochs=6, lr=0.3, warmup=2)
    warm, rest = 2 * STEPS, 4 * STEPS

    def build(optimiser):
        # LinearLR counts from 0, so that its factor after k steps is ours of step k
        rising = lr_scheduler.LinearLR(optimiser, 1 / warm, 1.0, total_iters=warm - 1)
        falling = lr_scheduler.CosineAnnealingLR(optimiser, T_max=rest)
        return lr_scheduler.SequentialLR(optimiser, [rising, falling], [warm])

    assert ours(config) == pytest.approx(oracle(config, build), rel=1e-9)


def test_closed_form_values():
    config = TrainConfig(epochs=10, lr=0.8, warmup=2)
    assert learning_rate(config, 0, 1) == pytest.approx(0.4)
    assert learning_rate(config, 1, 1) == pytest.approx(0.8)
    assert learning_rate(config, 2, 1) == pytest.approx(0.8)
    assert learning_rate(config, 6, 1) == pytest.approx(0.4)  # half-way down
    assert learning_rate(config, 9, 1) == pytest.approx(0.4 * (1 + math.cos(math.pi * 7 / 8)))
    assert set(ours(TrainConfig(epochs=3, schedule="constant", lr=0.2))) == {0.2}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epohcs": 3}, "Did you mean `epochs`"),
        ({"lr": "5e-4"}, "read as text"),
        ({"batch": 2.5}, "`batch` must be a whole number"),
        ({"epochs": True}, "`epochs` must be a whole number"),
        ({"lr": float("nan")}, "`lr` must be a number"),
        ({"momentum": 1.0}, "`momentum` must be"),
        ({"schedule": "cosin"}, "Did you mean `cosine`"),
        ({"epochs": 5, "warmup": 5}, "`warmup` must be shorter"),
        ({"schedule": "step", "milestones": [4, 2]}, "must rise"),
        ({"schedule": "step", "milestones": [99]}, "`milestones` must be a whole number"),
        ({"schedule": "step"}, "`step` needs `milestones`"),
        ({"milestones": [4, 8]}, r"`milestones` acts under .* `step` alone; found \(4, 8\) .* `cosine`"),
        ({"order": 0.5}, "`order` acts under the schedule `mittag_leffler` alone; found 0.5"),
        ({"schedule": "constant", "phase": 0.5}, "`phase` acts under"),
        ({"nesterov": True, "momentum": 0.0}, "`nesterov` needs"),
    ],
)
def test_bad_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainConfig.from_dict(settings)


def test_settings_survive_json():
    config = TrainConfig(schedule="step", milestones=(3, 9))
    assert TrainConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("step", [-1, 12, 1.5, True])
@pytest.mark.parametrize("schedule", ["cosine", "constant", "mittag_leffler"])
def test_steps_outside_the_training_are_refused(schedule, step):
    with pytest.raises(ValueError, match="`step` must be a whole number from 0 to 11"):
        learning_rate(TrainConfig(epochs=3, schedule=schedule), step, 4)
