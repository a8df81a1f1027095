import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lt_lib.curvature.class_gradients import class_gradients, class_loss_gradients
from lt_lib.curvature.vector_scaling import vector_scaling_share
from lt_lib.curvature.walks import equal_loss_lengths, project_out, walk

SIZE = 6 * 5 + 6 + 12 + 6 * 3 + 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(6, 3)
    ).double()


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(30, 5, generator=g).double(), torch.randint(3, (30,), generator=g)


def rows(count: int, seed: int = 2) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed)).double()


def at(model: nn.Module, offset: Tensor) -> nn.Module:
    moved = copy.deepcopy(model).eval()
    flat = nn.utils.parameters_to_vector(moved.parameters())
    nn.utils.vector_to_parameters((flat + offset).detach(), moved.parameters())
    return moved


def test_every_step_has_the_losses_and_accuracies_of_a_model_moved_by_hand() -> None:
    model, (x, y) = net(), data()
    directions = rows(2)
    found = walk(
        model, directions, x, y, steps=3, step=torch.tensor([0.5, -0.2], dtype=torch.float64), batch=7
    )
    for k, step in enumerate((0.5, -0.2)):
        for s in range(4):
            logits = at(model, s * step * directions[k] / directions[k].norm())(x).detach()
            losses = nn.functional.cross_entropy(logits, y, reduction="none")
            assert float(found.loss[k, s]) == pytest.approx(float(losses.mean()), rel=1e-12)
            assert float(found.length[k, s]) == pytest.approx(s * abs(step), abs=1e-12)
            for c in range(3):
                right = (logits.argmax(1) == c)[y == c].double().mean()
                assert float(found.class_accuracy[k, s, c]) == pytest.approx(float(right))
                assert float(found.class_loss[k, s, c]) == pytest.approx(
                    float(losses[y == c].mean()), rel=1e-12
                )
    assert torch.equal(found.kept, torch.ones(2, 3).double())
    change = (found.class_accuracy - found.class_accuracy[:, :1]).abs().amax(2)
    assert torch.equal(found.largest_class_change, change)


def test_fixed_spikes_are_projected_out_once() -> None:
    model, (x, y) = net(), data()
    spikes, direction = rows(3, seed=5), rows(1)
    unit, share = project_out(direction, spikes)
    assert float((unit @ spikes.T).abs().max()) < 1e-12
    assert float(unit.norm()) == pytest.approx(1)
    assert float(share) < 1
    found, plain = (walk(model, v, x, y, steps=2, spikes=s) for v, s in ((direction, spikes), (unit, None)))
    torch.testing.assert_close(found.loss, plain.loss)
    torch.testing.assert_close(found.kept, share.expand(1, 2))


def test_float32_rows_are_of_unit_length_to_rounding_in_many_dimensions() -> None:
    g = torch.Generator().manual_seed(0)
    directions, spikes = (torch.rand(n, 300_000, generator=g) + 0.5 for n in (2, 3))
    for given in (None, spikes):
        units = project_out(directions, given)[0].double()
        lengths = torch.linalg.vector_norm(units, dim=1)
        torch.testing.assert_close(lengths, torch.ones(2).double(), rtol=0, atol=2e-7)
    assert float((units @ spikes.double().T).abs().max()) < 1e-7 * float(spikes[0].double().norm())


def test_a_walk_in_some_parameters_is_one_in_all_along_padded_directions() -> None:
    model, (x, y) = net(), data()
    padded = torch.cat([torch.zeros(1, SIZE - 21).double(), rows(1)[:, -21:]], 1)
    found = walk(model, rows(1)[:, -21:], x, y, steps=2, params="4.*")
    torch.testing.assert_close(found.loss, walk(model, padded, x, y, steps=2).loss)
    alone = equal_loss_lengths(model, rows(1)[:, -21:], x, y, 0.01, params="4.*").length
    torch.testing.assert_close(alone, equal_loss_lengths(model, padded, x, y, 0.01).length)


def test_spikes_computed_at_each_point_see_the_moved_model() -> None:
    model, (x, y) = net(), data()
    seen: list[Tensor] = []

    def spikes(moved: nn.Module) -> Tensor:
        seen.append(nn.utils.parameters_to_vector(moved.parameters()).detach().clone())
        return class_loss_gradients(moved, x, y)[:2]

    found = walk(model, rows(1), x, y, steps=3, step=0.3, spikes=spikes)
    start, unit = nn.utils.parameters_to_vector(model.parameters()).detach(), rows(1)
    for s, theta in enumerate(seen):
        torch.testing.assert_close((theta - start).norm(), found.length[0, s])
        unit, _ = project_out(unit, class_loss_gradients(at(model, theta - start), x, y)[:2])
        if s + 1 < len(seen):
            torch.testing.assert_close(seen[s + 1] - theta, 0.3 * unit[0])
    assert len(seen) == 3
    assert bool(
        (found.kept[0, 1:] > found.kept[0, 0]).all()
    )  # what was projected once has little left to lose


def test_equal_loss_lengths_meet_the_target() -> None:
    model, (x, y) = net(), data()
    directions = torch.cat([rows(3), class_loss_gradients(model, x, y)])
    found = equal_loss_lengths(model, directions, x, y, 0.05, tol=1e-6)
    assert bool(found.reached.all())
    end = walk(model, directions, x, y, steps=1, step=found.length)
    torch.testing.assert_close(
        (end.loss[:, 1] - end.loss[:, 0]).abs(), torch.full((6,), 0.05).double(), atol=1e-5, rtol=0
    )
    short = equal_loss_lengths(model, directions[:1], x, y, 0.05, limit=float(found.length[0]) / 2)
    assert not bool(short.reached)
    assert float(short.length) == float(found.length[0]) / 2


def test_a_direction_that_changes_nothing_is_said_not_to_reach() -> None:
    model, (x, y) = net(), data()
    shift = torch.zeros(1, SIZE).double()
    shift[0, -3:] = 1  # the same bias for all logits
    found = equal_loss_lengths(model, shift, x, y, 0.01)
    assert (bool(found.reached), float(found.length)) == (False, 1e3)


def test_overflowing_logits_count_as_wrong() -> None:
    model, (x, y) = net().float(), data()
    x = x.float()
    unit = rows(1)[0].float() / rows(1)[0].float().norm()
    found = walk(model, unit[None], x, y, steps=1, step=1e30)
    logits = at(model, 1e30 * unit)(x).detach()
    finite = logits.isfinite().all(1)
    right = finite & (logits.nan_to_num(0.0).argmax(1) == y)
    assert not bool(finite.all())
    for c in range(3):
        assert float(found.class_accuracy[0, 1, c]) == pytest.approx(float(right[y == c].double().mean()))
    assert not bool(torch.isfinite(found.loss[0, 1]))


CALLS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "class_gradients": lambda m, x, y: class_gradients(m, x, y, pairs=True, chunk=2),
    "class_loss_gradients": class_loss_gradients,
    "vector_scaling": lambda m, x, y: vector_scaling_share(m, x, y, rows(2)),
    "walk": lambda m, x, y: walk(
        m, rows(1), x, y, steps=1, spikes=lambda moved: class_loss_gradients(moved, x, y)
    ),
    "equal_loss_lengths": lambda m, x, y: equal_loss_lengths(m, rows(1), x, y, 0.01),
}


@pytest.mark.parametrize("name", CALLS)
def test_analysis_leaves_the_model_bit_identical(name: str) -> None:
    model, (x, y) = net(), data()
    model[1].eval()  # mixed modes must come back as they were
    model[0].bias.grad = torch.ones(6).double()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    parameters, state = list(model.parameters()), torch.get_rng_state()
    CALLS[name](model, x, y)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(p.requires_grad for p in parameters)
    assert [p.grad is None for p in parameters] == [True, False, True, True, True, True]
    assert torch.equal(model[0].bias.grad, torch.ones(6).double())
    assert torch.equal(torch.get_rng_state(), state)


def test_modes_come_back_after_an_error_too() -> None:
    model, (x, y) = net(), data()
    with pytest.raises(RuntimeError):
        class_gradients(model, x[:, :3], y)
    assert all(m.training for m in model.modules())


def test_refusals() -> None:
    model, (x, y) = net(), data()
    with pytest.raises(ValueError, match="must not be zero"):
        walk(model, torch.zeros(1, SIZE), x, y)
    with pytest.raises(ValueError, match="lies in the span of the spikes"):
        project_out(rows(1), torch.cat([rows(1), rows(2, seed=9)]))
    with pytest.raises(ValueError, match="`steps` must be a whole number of at least 1"):
        walk(model, rows(1), x, y, steps=0)
    for batch in (0, None, 2.5, True):
        with pytest.raises(ValueError, match="`batch` must be a whole number of at least 1; found"):
            walk(model, rows(1), x, y, batch=batch)
    with pytest.raises(ValueError, match="equally many"):
        walk(model, rows(1), x, y[:-1])
    with pytest.raises(ValueError, match="`step` must be finite"):
        walk(model, rows(1), x, y, step=float("nan"))
    with pytest.raises(ValueError, match="must be positive"):
        equal_loss_lengths(model, rows(1), x, y, 0.0)
