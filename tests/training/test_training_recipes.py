from dataclasses import dataclass

import pytest
import torch
from small_training import NORMALISE, Images, small_net, some_images
from torch import nn

from lt_lib.losses import make_loss
from lt_lib.nets import build_net
from lt_lib.training import Recipe, TrainConfig, Trainer, register, train
from lt_lib.training.recipes import RECIPES, Batch, check_recipes
from lt_lib.training.sampling import draw_places

CONFIG = TrainConfig(epochs=3, batch=8, augment="crop_flip", device="cpu")
AS_STORED = (torch.zeros(1), torch.ones(1) / 255)


class NeedsFeatures(nn.Module):
    """Cross-entropy in the first epoch, then with a term in the features."""

    def __init__(self, recipe="features"):
        super().__init__()
        self.recipe, self.seen = recipe, []

    def set_epoch(self, epoch, epochs):
        self.recipe = "features" if epoch else "plain"

    def forward(self, logits, labels, features=None):
        self.seen.append(None if features is None else (logits, features))
        value = nn.functional.cross_entropy(logits, labels)
        return value if features is None else value + features.square().mean()


class Named(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.recipe = recipe

    def forward(self, logits, labels):
        return nn.functional.cross_entropy(logits, labels)


def trainer(loss, config=CONFIG, part=None, net=None, normalise=NORMALISE):
    return Trainer(net or small_net(), loss, part or some_images(), config, 1, normalise)


def test_the_recipe_is_asked_after_each_epoch_starts():
    loss, net = NeedsFeatures(), small_net()
    train(net, loss, some_images(), TrainConfig(epochs=2, batch=17, device="cpu"), 0, NORMALISE)
    assert [entry is None for entry in loss.seen] == [True, True, False, False]
    for logits, features in loss.seen[2:]:
        assert features.shape == (len(logits), 4)
        assert features.dtype == torch.float32


def test_features_are_those_that_enter_the_head():
    loss, net, part = NeedsFeatures(), small_net(), some_images()
    heads = []
    net.head.register_forward_hook(lambda module, inputs, output: heads.append((output, inputs[0])))
    RECIPES["features"].objective(
        net, loss, Batch((part.images.float(),), part.labels), torch.Generator()
    ).backward()
    ((logits, features),) = loss.seen
    assert torch.equal(logits, heads[0][0])
    assert torch.equal(features, heads[0][1])


def test_in_bfloat16_losses_are_computed_in_float32():
    dtypes = []

    class Matmul(nn.Module):
        recipe = "features"

        def forward(self, logits, labels, features):
            dtypes.append((logits.dtype, features.dtype, (features @ features.T).dtype))
            return logits.sum()

    config = TrainConfig(epochs=1, batch=40, lr=0, precision="bfloat16", device="cpu")
    train(small_net(), Matmul(), some_images(), config, 0, NORMALISE)
    assert dtypes == [(torch.float32,) * 3]


def test_unknown_recipes_are_refused():
    with pytest.raises(ValueError, match=r"`recipe` must be one of .*; found `feature`. Did you mean"):
        train(small_net(), Named("feature"), some_images(), CONFIG, 0, NORMALISE)


class Late(nn.Module):
    """Plain now, but a loss within it needs features later on."""

    recipe = "plain"

    def __init__(self):
        super().__init__()
        self.loss = Named("features")

    def forward(self, logits, labels):
        return logits.sum()


@pytest.mark.parametrize("loss", [Named("features"), Late()], ids=["now", "later"])
def test_a_network_without_features_is_refused_at_once(loss):
    net = nn.Sequential(small_net())
    with pytest.raises(ValueError, match="asks the network for `features` and `head`, which a Sequential"):
        train(net, loss, some_images(), CONFIG, 0, NORMALISE)


def test_deferral_past_the_last_epoch_is_refused():
    with pytest.raises(ValueError, match=r"`defer_epoch`.* 3"):
        train(small_net(), make_loss("focal", [11] * 3, defer_epoch=3), some_images(), CONFIG, 0, NORMALISE)


@dataclass
class Pairs(Recipe):
    """Two views, and a partner batch; keeps what it was given."""

    partner = "inverse"

    def __post_init__(self):
        self.batches, self.numbers = [], []

    def augments(self, config):
        return (config.augment, "shift")

    def objective(self, model, loss, batch, generator):
        self.batches.append(batch)
        self.numbers.append(torch.rand(2, generator=generator))
        return model(batch.views[0]).sum() + model(batch.partner_views[1]).sum()


@pytest.fixture
def pairs():
    recipe = Pairs()
    register("pairs", recipe)
    yield recipe
    del RECIPES["pairs"]


def tensors(batch):
    return [*batch.views, batch.labels, *batch.partner_views, batch.partner_labels]


def test_views_and_partners_of_an_epoch_depend_on_seed_and_epoch_alone(pairs):
    one, two = trainer(Named("pairs")), trainer(Named("pairs"))
    for epoch in (0, 1, 2):
        one.run_epoch(epoch)
    two.run_epoch(2)  # without the epochs before
    steps = one.steps_per_epoch
    first, last, again = (
        pairs.batches[:steps],
        pairs.batches[2 * steps : 3 * steps],
        pairs.batches[3 * steps :],
    )
    for a, b in zip(last, again, strict=True):
        assert len(a.views) == len(a.partner_views) == 2
        assert all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))
        assert all(x.shape == b.views[0].shape for x in (*a.views, *a.partner_views))
    assert not torch.equal(first[0].partner_views[0], last[0].partner_views[0])
    numbers = pairs.numbers
    assert all(
        torch.equal(a, b) for a, b in zip(numbers[2 * steps : 3 * steps], numbers[3 * steps :], strict=True)
    )
    assert not torch.equal(numbers[0], numbers[1])


def test_the_views_of_a_batch_show_the_same_images_differently(pairs):
    labels = torch.arange(40) % 3
    part = Images((labels * 80 + 5).to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 12, 12), labels)
    run = trainer(Named("pairs"), part=part, normalise=AS_STORED)
    run.run_epoch(0)
    for batch in pairs.batches:
        for view in batch.views:
            assert torch.equal(view[:, 0, 6, 6].round().long(), batch.labels * 80 + 5)
        for view in batch.partner_views:
            assert torch.equal(view[:, 0, 6, 6].round().long(), batch.partner_labels * 80 + 5)
        assert not torch.equal(batch.views[0], batch.views[1])


def test_a_loss_in_training_is_plain_by_default():
    assert trainer(nn.CrossEntropyLoss()).recipe is RECIPES["plain"]


@pytest.mark.parametrize(
    ("sampling", "shares"),
    [("balanced", [1, 1, 1]), ("inverse", [1, 4, 16]), ("square_root", [4, 2, 1])],
)
def test_samplings_draw_classes_in_their_shares(sampling, shares):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([16_000, 4_000, 1_000]))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    places = draw_places(labels, sampling, torch.Generator().manual_seed(1))
    assert len(places.images) == len(labels)
    assert torch.equal(places.keys, torch.arange(len(labels)))
    found = torch.bincount(labels[places.images]).double() / len(labels)
    wanted = torch.tensor(shares).double() / sum(shares)
    assert float((found - wanted).abs().max()) < 0.018  # five standard deviations
    if sampling == "balanced":  # within a class every image alike
        drawn = torch.bincount(places.images, minlength=len(labels))[labels == 2].double()
        assert float(drawn.mean()) == pytest.approx(7, rel=0.1)
        assert float(drawn.var()) == pytest.approx(7, rel=0.25)  # Poisson


def test_instance_sampling_is_a_permutation_keyed_by_image():
    places = draw_places(torch.zeros(50, dtype=torch.int64), "instance", torch.Generator().manual_seed(0))
    assert sorted(places.images.tolist()) == list(range(50))
    assert torch.equal(places.images, places.keys)


def test_an_image_drawn_twice_is_augmented_twice():
    part = Images(torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6), torch.tensor([0]))
    part = Images(part.images.repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    config = TrainConfig(epochs=1, batch=64, augment="crop_flip", sampling="balanced", device="cpu")
    seen = [next(iter(trainer(Named("plain"), config, part).batches(epoch))) for epoch in range(40)]
    twice = [batch.views[0] for batch in seen if batch.labels[0] == batch.labels[1]]
    assert twice
    assert any(not torch.equal(view[0], view[1]) for view in twice)


def test_sampling_and_views_typos_are_refused():
    with pytest.raises(ValueError, match=r"`sampling` must be one of .* Did you mean `balanced`"):
        TrainConfig(sampling="balancd")
    with pytest.raises(ValueError, match="`views` must be one of one, three; found `two`"):
        TrainConfig(views="two")
    with pytest.raises(ValueError, match="`sampling` must be one of"):
        draw_places(torch.zeros(3, dtype=torch.int64), "reverse", torch.Generator())


def test_further_views_of_digits_are_not_mirrored():
    for augment, further in (("shift", "resized_crop"), ("crop_flip", "simclr"), ("autoaugment", "simclr")):
        config = TrainConfig(augment=augment, views="three")
        assert RECIPES["plain"].augments(config) == (augment, further, further)
    run = trainer(Named("plain"), TrainConfig(augment="shift", views="three", batch=33, device="cpu"))
    (batch,) = run.batches(0)
    assert [view.shape for view in batch.views] == [(33, 1, 6, 6)] * 3


def test_features_recipe_lets_a_head_with_batch_norm_see_each_batch_once() -> None:
    net = build_net({"depth": 8, "width": 4, "head": "etf", "unit": True, "batch_norm": True}, 4, 1, seed=0)
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = Batch((images,), torch.tensor([0, 1, 2, 3, 0, 1]))
    loss = make_loss("dr", [4, 3, 2, 1])
    value = RECIPES["features"].objective(net, loss, batch, torch.Generator())
    assert int(net.head.bn.num_batches_tracked) == 1
    twin = build_net({"depth": 8, "width": 4, "head": "etf", "unit": True, "batch_norm": True}, 4, 1, seed=0)
    inputs = twin.head.inputs(twin.features(images))
    own = (inputs * twin.head.weight[batch.labels]).sum(1)
    torch.testing.assert_close(value, ((own - inputs.norm(dim=1)) ** 2 / (2 * inputs.norm(dim=1))).mean())


@pytest.mark.parametrize(
    ("name", "hyper", "net", "words"),
    [
        ("dr", {}, {}, "needs the fixed rows of an ETF head.*found a LinearHead"),
        ("dr", {}, {"head": "cosine"}, "found a CosineHead"),
        ("dr", {"scale": 2.0}, {"head": "etf"}, "`dr` .* `scale`, 2, but the head multiplies them by 1"),
        ("ldam", {}, {"head": "cosine", "scale": 16.0}, "`ldam` .* `scale`, 30, but .* by 16"),
        ("ldam", {"inverse": {}, "defer_epoch": 1}, {"head": "cosine", "scale": 16.0}, "`ldam` .* by 16"),
    ],
)
def test_a_head_on_which_the_loss_means_something_else_is_refused(name, hyper, net, words):
    model = build_net({"depth": 8, "width": 2, **net}, 3, 1, seed=0)
    with pytest.raises(ValueError, match=words):
        train(model, make_loss(name, [11] * 3, **hyper), some_images(), CONFIG, 0, NORMALISE)


@pytest.mark.parametrize(
    ("name", "hyper", "net"),
    [
        ("dr", {"scale": 3.0}, {"head": "etf", "scale": 3.0}),
        ("ldam", {"scale": 16.0}, {"head": "cosine", "scale": 16.0}),
        ("ldam", {}, {"head": "linear"}),  # its docstring says what the margin is there
    ],
)
def test_a_head_that_the_loss_allows_passes(name, hyper, net):
    check_recipes(
        build_net({"depth": 8, "width": 2, **net}, 3, 1, seed=0), make_loss(name, [11] * 3, **hyper)
    )
