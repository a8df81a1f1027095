import pytest
import torch
from torch import nn

from lt_lib.nets import BCLHeads, GLMCHeads, NetConfig, attach_extras, build_net, extras_of

NAMES = ("glmc", "bcl")
SMALL = {"depth": 8, "width": 4}
IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", ["linear", "cosine", "etf"])
def test_all_other_weights_and_the_random_state_stay_as_they_are(name, head):
    plain = build_net({**SMALL, "head": head}, 5, 1, seed=3)
    before = torch.random.get_rng_state()
    net = build_net({**SMALL, "head": head, "extras": name}, 5, 1, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    own = plain.state_dict()
    assert all(torch.equal(net.state_dict()[key], value) for key, value in own.items())
    assert {key.split(".")[0] for key in net.state_dict().keys() - own.keys()} == {"extras"}
    assert torch.equal(net.eval()(IMAGES), plain.eval()(IMAGES))


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name):
    one, same, other = (build_net({**SMALL, "extras": name}, 5, 1, seed) for seed in (1, 1, 2))
    for key, value in one.extras.state_dict().items():
        assert torch.equal(value, same.extras.state_dict()[key])
    for key, value in one.extras.named_parameters():
        fixed = bool((value == value.flatten()[0]).all())  # BatchNorm, and the bias of a classifier
        assert torch.equal(value, dict(other.extras.named_parameters())[key]) == fixed


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_go_round(name):
    net, copy = (build_net({**SMALL, "extras": name}, 5, 1, seed) for seed in (1, 2))
    copy.load_state_dict(net.state_dict())
    features = net.eval().features(IMAGES)
    inputs = (features,) if name == "glmc" else (features, net.head.weight_matrix())
    for one, two in zip(net.extras(*inputs), copy.eval().extras(*inputs), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(RuntimeError, match="extras"):
        build_net(SMALL, 5, 1, 1).load_state_dict(net.state_dict())


def test_shapes_of_the_heads():
    features, weight = torch.randn(6, 16), torch.randn(5, 16)
    logits, projections, predictions = extras_of(build_net({**SMALL, "extras": "glmc"}, 5, 1, 0), "glmc")(
        features
    )
    assert (logits.shape, projections.shape, predictions.shape) == ((6, 5), (6, 128), (6, 128))
    embeddings, prototypes = extras_of(build_net({**SMALL, "extras": "bcl"}, 5, 1, 0), "bcl")(
        features, weight
    )
    assert (embeddings.shape, prototypes.shape) == ((6, 128), (5, 128))
    wide = BCLHeads(2048, 5, torch.Generator())
    assert wide.projector(torch.randn(2, 2048)).shape == (2, 1024)


def test_linear_layers_start_uniform_within_one_over_the_root_of_their_inputs():
    heads = GLMCHeads(64, 10, torch.Generator().manual_seed(0))
    weight = heads.projector.weight
    assert weight.abs().max().item() == pytest.approx(1 / 8, rel=0.01)
    assert weight.var().item() == pytest.approx(1 / 64 / 3, rel=0.05)


def test_a_configuration_keeps_and_checks_the_name():
    assert NetConfig(extras="glmc").settings()["extras"] == "glmc"
    assert "extras" not in NetConfig().settings()
    with pytest.raises(
        ValueError, match=r"`extras` must be one of bcl, glmc; found `gmlc`. Did you mean `glmc`"
    ):
        NetConfig(extras="gmlc")


class Own(nn.Module):
    """A reader's network."""

    dim, classes = 9, 5

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(9, 5)

    def features(self, x):
        return x.flatten(1)[:, :9]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_ones_own_takes_them_too(name):
    net = attach_extras(Own(), name, seed=0)
    assert extras_of(net, name) is net.extras


def test_missing_or_other_heads_are_named():
    with pytest.raises(
        ValueError, match=r"`glmc` trains further heads.*found none\. Build it with `extras=\"glmc\"`"
    ):
        extras_of(build_net(SMALL, 5, 1, 0), "glmc")
    with pytest.raises(ValueError, match="found BCLHeads"):
        extras_of(build_net({**SMALL, "extras": "bcl"}, 5, 1, 0), "glmc")
    with pytest.raises(ValueError, match="`extras` must be one of bcl, glmc"):
        attach_extras(Own(), "simclr", 0)
    for net in (nn.Linear(3, 2), "net", nn.Sequential()):
        with pytest.raises(ValueError, match=rf"`dim` and `classes`; found a {type(net).__name__}, .* dim"):
            attach_extras(net, "glmc", 0)
