import copy

import pytest
import torch
from small_training import NORMALISE, Images, KeepStates, same, small_net, some_images
from torch import nn

from lt_lib.losses import make_loss
from lt_lib.metrics import accuracy
from lt_lib.training import TrainConfig, evaluate, train
from lt_lib.training.fine_tune import fine_tune, fine_tuning

CONFIG = TrainConfig(epochs=2, batch=8, lr=0.05, momentum=0.9, weight_decay=1e-3, device="cpu")
SIZE = sum(p.numel() for p in small_net().parameters())
ROWS = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(0))
CE = make_loss("ce", [11] * 3)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_plain_fine_tuning_is_training_of_a_copy():
    net = small_net()
    before = copy.deepcopy(net.state_dict())
    keeper = KeepStates()
    tuned = fine_tune(net, CE, some_images(), CONFIG, 3, NORMALISE, [keeper])
    wanted = train(copy.deepcopy(net), CE, some_images(), CONFIG, 3, NORMALISE)
    assert same(tuned.state_dict(), wanted.state_dict())
    assert same(net.state_dict(), before)
    assert sorted(keeper.states) == [1, 2]


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_projected_fine_tuning_does_not_move_along_the_rows(optimiser):
    net, config = small_net(), fine_tuning(CONFIG, "written", epochs=2, optimiser=optimiser, lr=0.05)
    config = TrainConfig.from_dict(config.to_dict() | {"weight_decay": 0.1})
    moved = flat(fine_tune(net, CE, some_images(), config, 0, NORMALISE, project=ROWS)) - flat(net)
    free = flat(fine_tune(net, CE, some_images(), config, 0, NORMALISE)) - flat(net)
    along, freely = ((ROWS @ v).norm() / ROWS.norm() / v.norm() for v in (moved, free))
    assert float(along) < 1e-5
    assert float(freely) > 1e-3


class Linear(nn.Module):
    """Softmax regression on pixels, in float64."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(36, 3).double()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(x.flatten(1))


def test_frozen_parameters_are_not_moved_to_keep_the_others_off_the_rows():
    net = small_net()
    frozen = next(net.parameters()).requires_grad_(False)
    config = fine_tuning(CONFIG, "afterwards", epochs=1, lr=0.05)
    tuned = fine_tune(net, CE, some_images(), config, 0, NORMALISE, project=ROWS, params="*")
    assert torch.equal(next(tuned.parameters()), frozen)
    moved = flat(tuned) - flat(net)
    assert float(moved.norm()) > 1e-3
    assert float((ROWS @ moved).abs().max()) < 1e-5 * float(ROWS.norm() * moved.norm())


def test_projected_gradient_descent_is_that_of_the_formula():
    part, rows = some_images(), torch.randn(4, 111, generator=torch.Generator().manual_seed(1)).double()
    config = fine_tuning(CONFIG, "afterwards", lr=0.1, batch=33)
    tuned = fine_tune(Linear(), CE, part, config, 0, NORMALISE, project=rows)
    x = (part.images.double().flatten(1) / 255 - 0.5) / 0.25
    basis = torch.linalg.qr(rows.T)[0]
    theta = torch.zeros(111, dtype=torch.float64)
    for _ in range(5):
        p = (x @ theta[:108].view(3, 36).T + theta[108:]).softmax(1)
        p[torch.arange(33), part.labels] -= 1
        gradient = torch.cat([(p.T @ x).reshape(-1), p.sum(0)]) / 33
        theta -= 0.1 * (gradient - basis @ (basis.T @ gradient))
    assert torch.allclose(flat(tuned), theta, atol=1e-6)
    assert float(theta.norm()) > 0.1


def test_rows_as_a_function_are_asked_for_once_an_epoch_and_the_rest_moves_freely():
    seen = []

    def rows(network):
        seen.append(network.head.weight.detach().clone())
        return torch.eye(15)

    net = small_net()
    tuned = fine_tune(net, CE, some_images(), CONFIG, 0, NORMALISE, project=rows, params="head.*")
    assert len(seen) == 2
    assert torch.allclose(tuned.head.weight, net.head.weight, atol=1e-6)  # every direction is taken out
    assert not torch.allclose(tuned.conv.weight, net.conv.weight, atol=1e-4)


def test_statistics_of_batch_normalisation_stay_on_request():
    net = small_net()
    kept = fine_tune(net, CE, some_images(), CONFIG, 0, NORMALISE, freeze_norm=True)
    moved = fine_tune(net, CE, some_images(), CONFIG, 0, NORMALISE)
    assert torch.equal(kept.bn.running_mean, net.bn.running_mean)
    assert not torch.equal(moved.bn.running_mean, net.bn.running_mean)
    assert not torch.equal(kept.bn.weight, net.bn.weight)


def long_tailed(seed, counts):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    level = torch.tensor([90.0, 128.0, 166.0])[labels]
    pixels = level[:, None, None, None] + 25 * torch.randn(len(labels), 1, 1, 1, generator=generator)
    return Images(pixels.round().clamp(0, 255).to(torch.uint8).expand(-1, 1, 6, 6).contiguous(), labels)


def test_class_balanced_and_calibration_fine_tuning_lift_the_tail():
    counts = [300, 60, 6]
    part, calibration, test = long_tailed(0, counts), long_tailed(1, [40] * 3), long_tailed(2, [200] * 3)
    config = TrainConfig(epochs=20, batch=32, lr=0.05, device="cpu")
    net = train(small_net(), make_loss("ce", counts), part, config, 0, NORMALISE)

    def worst(model):
        return accuracy(evaluate(model, test, NORMALISE).logits, test.labels, 3).worst

    stage = fine_tuning(config, epochs=10, lr=0.01)
    balanced = fine_tune(net, make_loss("class_balanced", counts), part, stage, 0, NORMALISE)
    stage = fine_tuning(config, epochs=40, lr=0.01)  # as many steps on fewer images
    on_calibration = fine_tune(net, make_loss("ce", [40] * 3), calibration, stage, 0, NORMALISE)
    assert worst(net) < 0.4
    assert worst(balanced) > worst(net) + 0.1
    assert worst(on_calibration) > worst(net) + 0.1


def test_presets_are_the_published_ones():
    found = {name: fine_tuning(CONFIG, name) for name in ("released", "written", "afterwards")}
    assert [(c.epochs, c.optimiser, c.lr, c.schedule) for c in found.values()] == [
        (3, "adamw", 1e-4, "constant"),
        (15, "adamw", 1e-4, "constant"),
        (5, "sgd", 1e-4, "constant"),
    ]
    assert fine_tuning(CONFIG, lr=0.5).lr == 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fine_tuning(CONFIG, "release"), "Did you mean `released`"),
        (
            lambda: fine_tune(small_net(), CE, some_images(), CONFIG, 0, NORMALISE, project=ROWS[:, 1:]),
            "rows",
        ),
        (lambda: fine_tune(small_net(), CE, some_images(), CONFIG, 0, NORMALISE, project=ROWS / 0), "finite"),
        (
            lambda: fine_tune(small_net(), make_loss("ce", [9] * 3), some_images(), CONFIG, 0, NORMALISE),
            "images of class 0",
        ),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
