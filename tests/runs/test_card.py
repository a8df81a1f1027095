"""A saved network comes back with the same logits and without its data; damage and misfits are refused."""

import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from small_runs import small_config
from torch import nn

from lt_lib.data import normalisation
from lt_lib.nets import build_net
from lt_lib.posthoc import adjusted_head, with_head
from lt_lib.runs import Store, run
from lt_lib.runs.card import load_card, save_card, save_run
from lt_lib.runs.methods import METHODS
from lt_lib.training import evaluate

GRAY = (torch.tensor([0.5]), torch.tensor([0.25]))
NAMES = ("Katze", "狗", "owl")
NET = {"depth": 8, "width": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(small_config(), Store(tmp_path_factory.mktemp("runs")))


def made(**net):
    return build_net({**NET, **net}, 3, 1, seed=5)


def test_a_run_comes_back_with_its_logits_and_needs_no_data(tmp_path, trained):
    card = load_card(save_run(tmp_path, trained, note="small").parent)
    split = trained.config.split()
    seen = evaluate(trained.load_model(), split.test, normalisation(split.train))
    again = evaluate(card.model, split.test, card.normalise)
    assert torch.equal(seen.logits, again.logits)
    guesses = [card.predict(image) for image in split.test.images[:20]]
    assert [guess.label for guess in guesses] == seen.classes[:20].tolist()
    assert torch.allclose(
        torch.stack([g.probabilities for g in guesses]), seen.logits[:20].softmax(1), atol=1e-5
    )
    assert guesses[0].name == split.class_names[guesses[0].label]
    assert card.metrics["test"] == trained.metrics["test"]
    assert card.config["loss"] == {"name": "ce"}
    assert card.note == "small"
    assert sorted(os.listdir(tmp_path))[0] == "card.json"
    assert len(os.listdir(tmp_path)) == 2


def test_every_way_of_giving_an_image_gives_one_answer(tmp_path):
    card = load_card(save_card(tmp_path, made(), NAMES, GRAY, (8, 8), NET).parent)
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    Image.fromarray(pixels).save(tmp_path / "new.png")
    forms = [tmp_path / "new.png", str(tmp_path / "new.png"), pixels, pixels[..., None], pixels / 255]
    forms += [torch.from_numpy(pixels)[None], torch.from_numpy(pixels)[None] / 255]
    answers = torch.stack([card.predict(form).probabilities for form in forms])
    assert torch.allclose(answers, answers[:1].expand_as(answers), atol=1e-6)
    assert answers[0].sum() == pytest.approx(1)
    assert card.predict(pixels).name in NAMES


@pytest.mark.parametrize("name", [n for n, method in METHODS.items() if method.net])
def test_networks_of_every_method_come_back(tmp_path, name):
    net = {**NET, **METHODS[name].net}
    model = build_net(net, 3, 1, seed=5).eval()
    card = load_card(save_card(tmp_path, model, NAMES, GRAY, (8, 8), net).parent)
    image = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(card.model(image), model(image))


@pytest.mark.parametrize("head", ["linear", "cosine", "etf"])
def test_an_edited_head_comes_back(tmp_path, head):
    options = {"head": head, "unit": True, "batch_norm": True} if head == "etf" else {"head": head}
    model = build_net({"depth": 8, "width": 2, **options}, 3, 1, seed=5).eval()
    edited = with_head(model, adjusted_head(model.head, shift=[0.5, 0.0, -0.5])).eval()
    card = load_card(save_card(tmp_path, edited, NAMES, GRAY, (8, 8), {**NET, **options}).parent)
    image = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(card.model(image), edited(image))


def test_a_network_of_ones_own_is_given_to_the_loader(tmp_path):
    def own():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    model = own()
    save_card(tmp_path, model, NAMES, GRAY, (8, 8))
    card = load_card(tmp_path, own())
    assert torch.equal(card.model[1].weight, model[1].weight)
    with pytest.raises(ValueError, match="cannot build"):
        load_card(tmp_path)
    with pytest.raises(ValueError, match="does not fit"):
        load_card(tmp_path, nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))


def test_a_new_card_replaces_the_old_one_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("keep")
    save_card(tmp_path, made(), NAMES, GRAY, (8, 8), NET, note="old")
    other = build_net(NET, 3, 1, seed=6)

    def refuse(old, new):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match="No space left"):
            save_card(tmp_path, other, NAMES, GRAY, (8, 8), NET, note="new")
    assert load_card(tmp_path).note == "old"
    save_card(tmp_path, other, NAMES, GRAY, (8, 8), NET, note="new")
    assert load_card(tmp_path).note == "new"
    assert len(list(tmp_path.iterdir())) == 3


def test_the_card_keeps_no_path_of_the_data(tmp_path):
    labels = np.repeat([0, 1], [20, 12])
    pixels = np.random.default_rng(0).integers(0, 255, (32, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "secret.npz", train_images=pixels, train_labels=labels)
    config = small_config(epochs=1)
    data = {"name": f"npz:{tmp_path}/secret.npz", "test": 0.25}
    found = run(type(config)(data=data, net=config.net, training=config.training), Store(tmp_path / "runs"))
    text = save_run(tmp_path / "model", found).read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert '"npz:secret.npz"' in text


def test_damage_is_named_and_nothing_is_run(tmp_path):
    path = save_card(tmp_path, made(), NAMES, GRAY, (8, 8), NET)
    card = json.loads(path.read_text(encoding="utf-8"))
    weights = tmp_path / card["weights"]
    weights.write_bytes(safetensors.torch.save({"a": torch.ones(1)}))
    with pytest.raises(ValueError, match="is not as it was written"):
        load_card(tmp_path)
    for change, words in (({"format": 9}, "is of format 9"), ({"weights": "../none"}, "found none")):
        path.write_text(json.dumps({**card, **change}))
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            load_card(tmp_path)
    for text, words in (
        ("{", "damaged"),
        ("[]", "`format` is missing"),
        ('{"format": 1}', "`classes` is missing"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            load_card(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"must hold a `card\.json`"):
        load_card(tmp_path / "none")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("classes", 5),
        ("classes", ["a", "a", "b"]),
        ("classes", [1, 2, 3]),
        ("channels", 10**9),
        ("channels", "x"),
        ("size", [8]),
        ("size", [-1, 8]),
        ("normalise", {}),
        ("normalise", {"mean": [0], "std": [0]}),
        ("normalise", {"mean": [float("nan")], "std": [1]}),
        ("normalise", {"mean": [0, 0, 0], "std": [1, 1, 1]}),
        ("network", 5),
        ("network", {"depth": 8}),
        ("weights", 5),
        ("weights", ""),
        ("sha256", None),
    ],
)
def test_a_card_that_was_changed_by_hand_is_refused_by_its_entry(tmp_path, entry, value):
    path = save_card(tmp_path, made(), NAMES, GRAY, (8, 8), NET)
    card = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**card, entry: value}))
    with pytest.raises(
        ValueError, match=rf"must be a card; its entry `{entry}` cannot be .* `save_card` wrote"
    ):
        load_card(tmp_path)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="must build the network that is saved"):
        save_card(tmp_path / "a", made(), NAMES, GRAY, (8, 8), {"depth": 14, "width": 2})
    with pytest.raises(ValueError, match="in JSON types"):
        save_card(tmp_path / "a", made(), NAMES, GRAY, (8, 8), NET, metrics={"loss": float("nan")})
    assert not (tmp_path / "a").exists()
    card = load_card(save_card(tmp_path, made(), NAMES, GRAY, (8, 8), NET).parent)
    with pytest.raises(ValueError, match="must be 1 x 8 x 8"):
        card.predict(np.zeros((9, 9), np.uint8))
    for pixels in (np.full((8, 8), 200.0), np.zeros((0, 8))):
        with pytest.raises(ValueError, match=r"floats in 0\.\.1"):
            card.predict(pixels)
    with pytest.raises(FileNotFoundError):
        card.predict(tmp_path / "none.png")
