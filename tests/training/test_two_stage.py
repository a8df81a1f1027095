import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from small_training import NORMALISE, Images, small_net, some_images
from torch import nn

from lt_lib.losses import make_loss
from lt_lib.nets import CosineHead, ETFHead, LinearHead, build_net, resnet
from lt_lib.posthoc import BatchNormLinearHead, UnitLinearHead, adjusted_head
from lt_lib.training import TrainConfig, evaluate
from lt_lib.training.two_stage import (
    WeightScales,
    learn_weight_scales,
    retrain_classifier,
    second_stage,
)

COUNTS, DIM, DECAY = [60, 25, 10], 4, 0.03
AS_THEY_ARE = (torch.zeros(DIM), torch.ones(DIM))
FULL = TrainConfig(epochs=200, batch=95, lr=0.5, momentum=0.9, weight_decay=DECAY, device="cpu")


class Given(nn.Module):
    """A network whose images are its features."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def features(self, x):
        return x.flatten(1)

    def forward(self, x):
        return self.head(self.features(x))


def long_tailed(seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))
    means = 4 * torch.eye(3, DIM)  # far apart: separable
    features = means[labels] + torch.randn(95, DIM, generator=generator)
    return Images(features[:, :, None, None], labels)


def balanced_regression(part):
    """Weights (C, d + 1), bias last, of the balanced logistic regression with all weights penalised."""
    from sklearn.linear_model import LogisticRegression

    columns = np.c_[part.images.flatten(1).numpy(), np.ones(95)]
    rule = LogisticRegression(
        C=1 / (95 * DECAY), class_weight="balanced", fit_intercept=False, tol=1e-10, max_iter=2000
    )
    return torch.from_numpy(rule.fit(columns.astype(float), part.labels.numpy()).coef_)


def test_a_retrained_classifier_is_the_balanced_logistic_regression():
    part = long_tailed()
    weights = torch.tensor([95 / (3 * n) for n in COUNTS])
    loss = make_loss("inverse_frequency", COUNTS)
    loss.class_weights.copy_(weights)  # of mean one over images, as scikit-learn's
    found = retrain_classifier(Given(LinearHead(DIM, 3)), loss, part, FULL, 0, AS_THEY_ARE)
    wanted = balanced_regression(part)
    assert torch.allclose(torch.cat([found.weight, found.bias[:, None]], 1).double(), wanted, atol=2e-3)


def test_balanced_sampling_comes_close_to_it():
    part = long_tailed()
    config = second_stage(FULL, epochs=100, batch=32, lr=0.1)
    assert config.sampling == "balanced"
    found = retrain_classifier(
        Given(LinearHead(DIM, 3)), make_loss("ce", COUNTS), part, config, 0, AS_THEY_ARE
    )
    features = part.images.flatten(1)
    wanted = balanced_regression(part)
    logits = features.double() @ wanted[:, :DIM].T + wanted[:, DIM]
    assert torch.allclose(found(features).softmax(1).double(), logits.softmax(1), atol=0.06)
    plain = retrain_classifier(
        Given(LinearHead(DIM, 3)),
        make_loss("ce", COUNTS),
        part,
        second_stage(config, sampling="instance"),
        0,
        AS_THEY_ARE,
    )
    distance = [(rule(features).softmax(1) - logits.softmax(1)).abs().max() for rule in (found, plain)]
    assert distance[1] > 2 * distance[0]


@pytest.mark.parametrize("bias", ["scale", "keep", "drop"])
def test_the_gradient_of_weight_scales_is_that_of_finite_differences(bias):
    head = LinearHead(DIM, 3, seed=1).double()
    nn.init.normal_(head.bias, generator=torch.Generator().manual_seed(2))
    scales, part = WeightScales(head, bias), long_tailed()
    features, loss = part.images.flatten(1).double(), make_loss("balanced_softmax", COUNTS)
    assert [name for name, _ in scales.named_parameters()] == ["scales"]
    value = loss(scales(features), part.labels)
    (gradient,) = torch.autograd.grad(value, scales.scales)
    for c in range(3):
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                scales.scales[c] += step
                values.append(float(loss(scales(features), part.labels)))
                scales.scales[c] -= step
        assert float(gradient[c]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6, abs=1e-9)
    changed = adjusted_head(head, scales.scales, bias=bias)
    assert torch.allclose(changed(features), scales(features))


@pytest.mark.parametrize("bias", ["scale", "drop"])
def test_learned_scales_are_those_of_an_independent_solver(bias):
    part, head = long_tailed(), LinearHead(DIM, 3, seed=1)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3, DIM) * torch.tensor([2.0, 1.0, 0.5])[:, None])
        head.bias.copy_(torch.tensor([0.5, 0.1, -0.4]))
    x, y = part.images.flatten(1).double().numpy(), part.labels.numpy()
    w, b = head.weight.detach().double().numpy(), head.bias.detach().double().numpy() * (bias == "scale")

    def objective(f):
        z = (x @ w.T + b) * f + np.log(COUNTS)
        top = z.max(1, keepdims=True)
        log_p = z - top - np.log(np.exp(z - top).sum(1, keepdims=True))
        return -log_p[np.arange(95), y].mean() + DECAY / 2 * f @ f

    wanted = minimize(objective, np.ones(3), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-14})
    loss = make_loss("balanced_softmax", COUNTS)
    found = learn_weight_scales(Given(head), loss, part, FULL, 0, AS_THEY_ARE, bias=bias)
    assert found.numpy() == pytest.approx(wanted.x, abs=1e-3)


CONFIG = TrainConfig(epochs=2, batch=8, augment="crop_flip", device="cpu")


def digits_like(head="linear", **options):
    return resnet(8, 2, classes=3, channels=1, head=head, **options)


@pytest.mark.parametrize("features", ["augmented", "once"])
@pytest.mark.parametrize("learn", [retrain_classifier, learn_weight_scales])
def test_the_network_stays_and_the_seed_decides(learn, features):
    net, part = digits_like().train(), some_images()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()

    def learned(seed):
        found = learn(net, make_loss("ce", [11] * 3), part, CONFIG, seed, NORMALISE, features)
        return found if isinstance(found, torch.Tensor) else torch.cat([found.weight.flatten(), found.bias])

    one = learned(0)
    assert torch.equal(learned(0), one)
    assert not torch.equal(learned(1), one)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())
    assert all(p.requires_grad and bool((p.grad == 1).all()) for p in net.parameters())


def test_batch_normalisation_uses_the_running_statistics():
    net, part = digits_like().train(), some_images()
    found = retrain_classifier(net, make_loss("ce", [11] * 3), part, CONFIG, 0, NORMALISE, "once")
    seen = evaluate(net, part, NORMALISE)
    stored = Images(seen.features[:, :, None, None], seen.labels)
    config = TrainConfig(**{**CONFIG.to_dict(), "augment": "none"})
    given, ones = Given(digits_like().head), (torch.zeros(8), torch.ones(8))
    same = retrain_classifier(given, make_loss("ce", [11] * 3), stored, config, 0, ones)
    assert torch.equal(found.weight, same.weight)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (LinearHead(8, 3, bias=False), LinearHead),
        (CosineHead(8, 3), UnitLinearHead),
        (ETFHead(8, 3), LinearHead),
        (ETFHead(8, 3, unit=True), UnitLinearHead),
        (ETFHead(8, 3, unit=True, batch_norm=True), BatchNormLinearHead),
    ],
)
def test_the_new_classifier_is_linear_in_what_the_old_head_saw(head, kind):
    net = digits_like()
    net.head = head
    found = retrain_classifier(net, make_loss("ce", [11] * 3), some_images(), CONFIG, 0, NORMALISE)
    assert type(found) is kind
    for loss in ("ce", "ib"):  # the latter asks for what the head acts on
        scales = learn_weight_scales(net, make_loss(loss, [11] * 3), some_images(), CONFIG, 0, NORMALISE)
        assert scales.shape == (3,)


@pytest.mark.parametrize("name", ["inverse", "focal", "balanced_softmax", "class_mean"])
def test_any_loss_can_stand_in(name):
    config = second_stage(CONFIG, epochs=2, sampling="instance")
    losses = [make_loss(kind, [11] * 3) for kind in (name, "ce")]
    one, other = (
        retrain_classifier(digits_like(), loss, some_images(), config, 0, NORMALISE) for loss in losses
    )
    assert bool(torch.isfinite(one.weight).all())
    assert torch.allclose(one.weight, other.weight) == (name == "balanced_softmax")  # equal counts


def test_a_loss_may_ask_for_features():
    class OfFeatures(nn.Module):
        recipe = "features"

        def forward(self, logits, labels, features):
            assert features.shape == (len(labels), 8)
            assert not features.requires_grad
            return nn.functional.cross_entropy(logits, labels)

    found = retrain_classifier(digits_like(), OfFeatures(), some_images(), CONFIG, 0, NORMALISE)
    plain = retrain_classifier(digits_like(), nn.CrossEntropyLoss(), some_images(), CONFIG, 0, NORMALISE)
    assert torch.equal(found.weight, plain.weight)


def test_the_second_stage_starts_the_schedule_again():
    first = TrainConfig(epochs=24, lr=0.3, schedule="step", milestones=(12,), warmup=2, augment="shift")
    stage = second_stage(first)
    assert (stage.epochs, stage.schedule, stage.warmup, stage.milestones) == (10, "cosine", 0, ())
    assert (stage.sampling, stage.lr, stage.augment, stage.batch) == ("balanced", 0.3, "shift", first.batch)
    assert second_stage(first, epochs=5, lr=0.1, sampling="instance").lr == 0.1


class OfUnknownRecipe(nn.CrossEntropyLoss):
    recipe = "unheard"


@pytest.mark.parametrize("extras", ["glmc", "bcl"])
def test_a_host_with_further_heads_is_a_host(extras):
    plain, host = (build_net({"width": 2, "extras": kind}, 3, 1, seed=0) for kind in (None, extras))
    one, other = (
        retrain_classifier(net, make_loss("ib", [11] * 3), some_images(), CONFIG, 0, NORMALISE)
        for net in (plain, host)
    )
    assert torch.equal(one.weight, other.weight)
    with pytest.raises(ValueError, match=f"the loss `{extras}` trains further heads"):
        retrain_classifier(host, make_loss(extras, [11] * 3), some_images(), CONFIG, 0, NORMALISE)


CE = make_loss("ce", [11] * 3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: second_stage(CONFIG, epoch=3),
            "`a field of TrainConfig` must be one of.*Did you mean `epochs`",
        ),
        (lambda: second_stage(CONFIG, epochs=0), "`epochs` must be a whole number from 1"),
        (
            lambda: retrain_classifier(nn.Flatten(), CE, some_images(), CONFIG, 0, NORMALISE),
            "`two-stage` asks the network for `features` and `head`",
        ),
        (
            lambda: retrain_classifier(small_net(), CE, some_images(), CONFIG, 0, NORMALISE),
            "must be linear in what it sees.*found Linear",
        ),
        (
            lambda: retrain_classifier(digits_like(), CE, some_images(), CONFIG, 0, NORMALISE, "twice"),
            "`features` must be one of augmented, once",
        ),
        (
            lambda: retrain_classifier(digits_like(), CE, some_images(classes=4), CONFIG, 0, NORMALISE),
            r"`labels` must be 0\.\.2; found 3",
        ),
        (
            lambda: learn_weight_scales(digits_like(), CE, some_images(), CONFIG, 0, NORMALISE, bias="no"),
            "`bias` must be one of drop, keep, scale",
        ),
        (
            lambda: retrain_classifier(digits_like(), OfUnknownRecipe(), some_images(), CONFIG, 0, NORMALISE),
            "glmc",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
