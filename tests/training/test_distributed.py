"""Two gloo processes against one with the same global batch."""

import pytest
import safetensors.torch
import split_cases
import torch
from safetensors import safe_open
from small_training import NORMALISE, small_net
from torch.nn.functional import batch_norm
from two_processes import run_two

from lt_lib._processes import Processes, current, gathered, summed
from lt_lib.training import evaluate, evaluate_together, processes
from lt_lib.training.global_norm import normalised


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What both processes hold at the end of each case, and what they were refused."""
    folder = tmp_path_factory.mktemp("two")
    run_two(split_cases.__file__, folder)
    files = [folder / f"{rank}.safetensors" for rank in range(2)]
    said = []
    for file in files:
        with safe_open(file, "pt") as content:
            said.append(content.metadata())
    return [safetensors.torch.load_file(file) for file in files], said


def apart(one, other):
    """Largest relative distance of floating tensors, NaN at the same places; others must be equal."""
    worst = 0.0
    for name, value in one.items():
        found = other[name]
        if value.is_floating_point():
            assert torch.equal(value.isnan(), found.isnan()), name
            value, found = value.nan_to_num().double(), found.nan_to_num().double()
            distance = float((value - found).norm() / value.norm().clamp(min=1e-30))
            # where the gradient is 0 but for rounding (a bias before a normalisation) there is no scale
            worst = max(worst, distance if float(value.norm()) > 1e-9 else 0.0)
        else:
            assert torch.equal(value, found), name
    return worst


def part_of(found, case):
    return {name.split("/", 1)[1]: value for name, value in found.items() if name.startswith(f"{case}/")}


def test_two_processes_give_what_one_gives_for_every_loss_recipe_and_uneven_batch(two):
    (first, _), _ = two
    distances = {name: apart(one, part_of(first, name)) for name, one in split_cases.every_case()}
    single = {name for name in distances if name.endswith("_32")}
    assert len(single) == 5
    assert all(distances[name] < 1e-5 for name in single), distances
    assert all(distances[name] < 1e-10 for name in distances.keys() - single), distances


def test_the_cases_train_reweight_and_count(two):
    (first, _), _ = two
    start = split_cases.net_of("plain").double().state_dict()
    for name in split_cases.INVERSE:
        assert float((first[f"{name}/model.conv.weight"] - start["conv.weight"]).norm()) > 1e-2
    counts = part_of(first, "released")["loss.loss.reweighting.batch_counts"]
    assert len(first["released/class_losses"]) == 105
    assert counts[0] == 13 * 7  # from epoch 2 of 15 on, every batch holds the largest class
    assert 13 <= counts[3] <= 26  # two images in an epoch


def test_both_processes_hold_the_same_bits(two):
    (first, second), _ = two
    assert first.keys() == second.keys()
    differing = [
        name for name in first if not torch.equal(first[name].nan_to_num(), second[name].nan_to_num())
    ]
    # logits of batches normalised alone; what random layers draw for rows of their own
    assert set(differing) <= {"local/class_losses", "drawn/own"}


def test_random_layers_draw_for_each_process_and_leave_the_common_stream_in_step(two):
    (first, second), _ = two
    assert not torch.equal(first["drawn/own"], second["drawn/own"])
    assert torch.equal(first["drawn/after"], second["drawn/after"])
    assert float(first["dropout/model.conv.weight"].norm()) > 0


def test_local_batch_normalisation_trains_something_else(two):
    (first, _), _ = two
    one, local = split_cases.local_norm(), part_of(first, "local")
    moved = float((one["model.bn.running_mean"] - local["model.bn.running_mean"]).norm())
    assert moved > 1e-2 * float(one["model.bn.running_mean"].norm())
    assert apart(one, part_of(first, "norm")) < 1e-10


def test_a_resumed_training_ends_with_the_same_bits(two):
    found, _ = two
    assert all(bool(same) for part in found for same in part_of(part, "resumed").values())
    assert len(part_of(found[0], "resumed")) > 10


def test_two_processes_finish_what_one_began(two):
    (first, _), _ = two
    whole = split_cases.case(split_cases.INVERSE["running"], epochs=4)[0]
    del whole["class_losses"]  # of all steps
    assert apart(whole, part_of(first, "begun_alone")) < 1e-10


def test_gathered_logits_make_the_gradients_of_data_parallel_those_of_the_whole_batch(two):
    (first, _), _ = two
    one = split_cases.gradients(Processes(), lambda net: net)
    assert len(one) == 4
    assert apart(one, part_of(first, "wrapped")) < 1e-12


def test_evaluation_counts_every_image_once(two):
    (first, _), _ = two
    seen = part_of(first, "evaluated")
    one = evaluate(small_net(classes=4), split_cases.long_tailed(), NORMALISE)
    assert torch.equal(seen["labels"], one.labels)
    assert seen["logits"].shape == one.logits.shape == (61, 4)
    torch.testing.assert_close(seen["logits"], one.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen["features"], one.features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen["one"], one.logits[:1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["weights", "seed", "meta"])
def test_every_process_refuses_what_cannot_be_trained_together(two, what):
    _, said = two
    sentences = {texts[what] for texts in said}
    assert len(sentences) == 1
    assert {"weights": "process 1 differs", "seed": "the same settings", "meta": "one process"}[what] in (
        sentences.pop()
    )


def test_alone_nothing_is_gathered_or_started(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    own = torch.ones(3, requires_grad=True)
    with processes() as team:
        assert team == Processes() == current()
        assert team.first
        assert gathered(own, team, 3) is own
        assert summed(own, team) is own
    assert not torch.distributed.is_initialized()
    part = split_cases.long_tailed()
    net = small_net(classes=4)
    assert torch.equal(evaluate_together(net, part, NORMALISE).logits, evaluate(net, part, NORMALISE).logits)
    with pytest.raises(ValueError, match="`batch_norm`"), processes("both"):
        pass


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_hold_every_row_once_and_differ_by_one_at_most(rows, size):
    shares = [Processes(rank, size).share(rows) for rank in range(size)]
    assert [i for share in shares for i in range(rows)[share]] == list(range(rows))
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
def test_the_normalisation_is_torchs_in_value_gradient_and_statistics(momentum, affine):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 3, 4, 2, generator=generator, dtype=torch.float64) * 3 + 100
    pull = torch.randn(5, 3, 4, 2, generator=generator, dtype=torch.float64)
    results = []
    for own in (False, True):
        layer = torch.nn.BatchNorm2d(3, momentum=momentum, affine=affine).double()
        inputs = values.clone().requires_grad_()
        for _ in range(2):
            out = normalised(layer, Processes(), inputs) if own else layer(inputs)
        (out * pull).sum().backward()
        results.append([out.detach(), inputs.grad, *layer.state_dict().values()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    plain = batch_norm(values, None, None, training=True)
    assert affine or torch.allclose(results[1][0], plain)
