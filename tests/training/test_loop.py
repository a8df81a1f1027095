import json
import random

import numpy as np
import pytest
import torch
from small_training import NORMALISE, Images, KeepStates, same, small_net, some_images
from torch import nn

from lt_lib.losses import make_loss
from lt_lib.training import Recorder, TrainConfig, batch_bounds, train
from lt_lib.training.loop import Trainer

CONFIG = TrainConfig(epochs=4, batch=8, augment="crop_flip", device="cpu")
COUNTS = [11, 11, 11]
AS_STORED = (torch.zeros(1), torch.ones(1) / 255)  # leaves pixels at 0..255


def trained(config=CONFIG, loss="ce", seed=1, net=None, part=None, **more):
    part = part or some_images()
    objective = make_loss(loss, COUNTS)
    objective.class_counts = None  # parts differ
    model = train(net or small_net(), objective, part, config, seed, NORMALISE, **more)
    return {**model.state_dict(), **{f"loss.{k}": v for k, v in objective.state_dict().items()}}


@pytest.mark.parametrize("loss", ["ce", "inverse"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"optimiser": "adamw", "lr": 0.01}, {"memory_format": "channels_last", "precision": "bfloat16"}],
    ids=["sgd", "adamw", "bfloat16"],
)
def test_resuming_after_any_epoch_gives_the_same_bits(loss, settings):
    config = TrainConfig(**{**CONFIG.to_dict(), **settings})
    keep = KeepStates()
    whole = trained(config, loss, callbacks=[keep])
    for epoch in (1, 3):
        # another initial network: everything must come from the state
        assert same(trained(config, loss, net=small_net(seed=9), state=keep.states[epoch]), whole)


def test_the_seed_decides_and_nothing_else():
    one = trained()
    torch.manual_seed(123)
    assert same(one, trained())
    assert not same(one, trained(seed=2))


def global_state():
    legacy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), str(legacy), random.getstate(), torch.get_num_threads()


def test_global_random_state_and_threads_are_untouched():
    before = global_state()
    trained(net=nn.Sequential(small_net(), nn.Dropout(0.5)))
    assert global_state() == before


def test_dropout_follows_the_seed():
    one, two, other = (trained(net=nn.Sequential(small_net(), nn.Dropout(0.5)), seed=s) for s in (1, 1, 2))
    assert same(one, two)
    assert not same(one, other)


def test_a_callback_that_measures_changes_nothing():
    recorder = Recorder(some_images(), some_images(seed=5), 3, every=1)
    assert same(trained(callbacks=[recorder]), trained())
    assert [row["epoch"] for row in recorder.rows] == [1, 2, 3, 4]


def test_an_epoch_holds_every_image_once_in_another_order_each_time():
    n = 33
    pixels = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous()
    part = Images(pixels, torch.arange(n) % 3)
    config = TrainConfig(epochs=2, batch=8, device="cpu")
    trainer = Trainer(
        small_net(), make_loss("ce", COUNTS), part, config, 0, (torch.zeros(1), torch.ones(1) / 255)
    )
    orders = []
    for epoch in range(2):
        batches = list(trainer.batches(epoch))
        values = torch.cat([batch.views[0][:, 0, 0, 0] for batch in batches]).round().long()
        labels = torch.cat([batch.labels for batch in batches])
        assert sorted(values.tolist()) == list(range(n))
        assert torch.equal(labels, values % 3)  # each label stays with its image
        orders.append(values.tolist())
    assert orders[0] != orders[1]


def test_the_augmented_batch_keeps_labels():
    labels = some_images(30).labels
    part = Images((labels * 100).to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 8, 8), labels)
    config = TrainConfig(augment="shift", batch=30, device="cpu")
    trainer = Trainer(small_net(), make_loss("ce", COUNTS), part, config, 0, AS_STORED)
    (batch,) = trainer.batches(0)
    assert torch.equal(batch.views[0][:, 0, 4, 4].round().long(), batch.labels * 100)


def test_the_last_batch_is_kept_and_never_a_single_image():
    assert batch_bounds(10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert batch_bounds(9, 4) == [(0, 4), (4, 9)]
    assert batch_bounds(1, 4) == [(0, 1)]
    assert batch_bounds(3, 1) == [(0, 1), (1, 2), (2, 3)]


def test_batch_normalisation_without_positions_survives_an_odd_image():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    trained(net=net)  # 33 images in batches of 8 would leave one, on which BatchNorm1d raises


def test_a_diverging_loss_stops_with_a_sentence():
    config = TrainConfig(epochs=4, batch=8, lr=1000.0, momentum=0.99, schedule="constant", device="cpu")
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 30), nn.Linear(30, 30), nn.Linear(30, 3))
    with pytest.raises(FloatingPointError, match=r"became (nan|inf) in epoch \d of 4 .*Lower `lr`"):
        trained(config, net=net)


class Spoil(nn.Module):
    """A finite objective, beside which a tensor of the network becomes infinite."""

    def __init__(self, net, name):
        super().__init__()
        self.tensor = net.state_dict(keep_vars=True)[name]

    def forward(self, logits, labels):
        self.tensor.data.view(-1)[-1] = float("inf")  # past autograd, which would object
        return logits.sum() * 0


@pytest.mark.parametrize("name", ["head.bias", "bn.running_var"])
def test_a_network_that_is_not_finite_is_never_returned(name):
    net, keep = small_net(), KeepStates()
    config = TrainConfig(epochs=2, batch=40, device="cpu")
    with pytest.raises(FloatingPointError, match=rf"`{name}` of the network became .* in epoch 1 of 2"):
        train(net, Spoil(net, name), some_images(), config, 0, NORMALISE, [keep])
    assert keep.states == {}


class Huge(nn.Module):
    def forward(self, logits, labels):
        return logits.sum() * 0 + 1e30


def test_a_huge_finite_loss_is_no_error():
    net = train(small_net(), Huge(), some_images(), CONFIG, 0, NORMALISE)
    assert all(bool(p.isfinite().all()) for p in net.parameters())


def test_it_learns():
    labels = torch.arange(60) % 3
    pixels = torch.randint(
        0, 60, (60, 1, 6, 6), generator=torch.Generator().manual_seed(0)
    ) + 80 * labels.view(-1, 1, 1, 1)
    recorder = Recorder(*2 * [Images(pixels.to(torch.uint8), labels)], 3, every=30)
    trained(TrainConfig(epochs=30, batch=20, device="cpu"), part=recorder.train, callbacks=[recorder])
    assert min(recorder.rows[-1]["train_class_accuracy"]) > 0.95


def test_a_state_of_another_network_is_refused():
    keep = KeepStates()
    trained(callbacks=[keep])
    net = small_net()
    net.head = nn.Linear(4, 5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match="checkpoint is of another model: `head"):
        train(net, nn.CrossEntropyLoss(), some_images(), CONFIG, 1, NORMALISE, state=keep.states[1])
    assert same(net.state_dict(), before)
    with pytest.raises(ValueError, match="checkpoint is of another loss"):
        trained(loss="inverse", state=keep.states[1])


def test_bad_data_are_refused():
    with pytest.raises(ValueError, match=r"must be 0\.\.2; found 7"):
        trained(part=Images(some_images().images, some_images().labels + 7))
    with pytest.raises(ValueError, match="have 3 channel"):
        trained(part=some_images(channels=3))
    with pytest.raises(ValueError, match="no images"):
        trained(part=some_images(n=0))
    part = some_images()
    with pytest.raises(ValueError, match="found 33 images and 30 labels"):
        trained(part=Images(part.images, part.labels[:30]))
    pixels = part.images / 255
    pixels[3, 0, 1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"`images` must be finite; found 1 .* \(3, 0, 1, 2\)"):
        trained(part=Images(pixels, part.labels))
    with pytest.raises(ValueError, match="`seed` must be a whole number"):
        trained(seed=-1)
    with pytest.raises(ValueError, match=r"must be float32 or float64; found torch\.float16"):
        trained(net=small_net().half())
    for images, batch in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="must be a whole number from 1"):
            batch_bounds(images, batch)


class OnePosition(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, stride=4, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)
        )


@pytest.mark.parametrize(("n", "batch"), [(1, 8), (9, 1)])
def test_batches_without_variance_are_refused(n, batch):
    config = TrainConfig(epochs=1, batch=batch, device="cpu")
    with pytest.raises(ValueError, match="Batch normalisation needs two values a channel"):
        trained(config, net=OnePosition(), part=some_images(n=n, size=4))
    trained(config, net=small_net(), part=some_images(n=n, size=4))  # sixteen positions an image
    trained(TrainConfig(epochs=1, batch=2, device="cpu"), net=OnePosition(), part=some_images(9, size=4))


def test_a_network_of_double_precision_trains_as_the_single_one():
    config = TrainConfig(epochs=2, batch=8, lr=0.01, device="cpu")
    single, double = trained(config), trained(config, net=small_net().double())
    assert double["conv.weight"].dtype == torch.float64
    assert all(torch.allclose(double[name].to(single[name]), single[name], atol=1e-4) for name in single)


def test_numbers_of_numpy_are_numbers():
    numbers = {"epochs": np.int64(3), "lr": np.float32(0.5), "milestones": list(np.array([1, 2]))}
    config = TrainConfig(schedule="step", **numbers)
    assert config == TrainConfig(epochs=3, lr=0.5, schedule="step", milestones=(1, 2))
    assert type(config.epochs) is int
    assert type(config.lr) is float
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()
    with pytest.raises(ValueError, match="`epochs` must be a whole number from 1 to 100000; found"):
        TrainConfig(epochs=np.float64(3))


def test_the_recorder_refuses_what_it_cannot_measure():
    part = some_images()
    with pytest.raises(ValueError, match="`every` must be a whole number"):
        Recorder(part, part, 3, every=1.5)
    with pytest.raises(ValueError, match=r"two classes or more, .*; found 1"):
        Recorder(Images(part.images, part.labels * 0), part, 1)


def test_the_recorder_measures_what_it_says():
    part, test = some_images(), some_images(n=20, seed=3)
    recorder = Recorder(part, test, 3, every=3)
    objective = make_loss("inverse", COUNTS, clamp=10.0)
    net = train(small_net(), objective, part, CONFIG, 0, NORMALISE, [recorder])
    assert [row["epoch"] for row in recorder.rows] == [3, 4]
    row = recorder.rows[-1]
    net.eval()
    with torch.no_grad():
        logits = net((part.images.double() / 255 - 0.5).float() / 0.25)
    losses = nn.functional.cross_entropy(logits, part.labels, reduction="none").double()
    means = np.array([float(losses[part.labels == c].mean()) for c in range(3)])
    assert row["train_class_loss"] == pytest.approx(means, rel=1e-4)
    assert row["train_rho"] == pytest.approx(means.std() / means.mean(), rel=1e-3)
    right = (logits.argmax(1) == part.labels).double()
    assert row["train_class_accuracy"] == pytest.approx(
        [float(right[part.labels == c].mean()) for c in range(3)]
    )
    assert len(row["weights"]) == 3
    assert row["clamped_samples"] == 0
    assert {"nc1", "nc2", "test_rho", "test_class_loss"} <= row.keys()


def test_other_losses_have_no_weights():
    recorder = Recorder(some_images(), some_images(), 3)
    trained(callbacks=[recorder])
    assert "weights" not in recorder.rows[0]
