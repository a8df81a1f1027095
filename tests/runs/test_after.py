import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from after_runs import KINDS, with_after
from small_runs import bits, small_config

from lt_lib import profiles
from lt_lib.data import normalisation
from lt_lib.losses import make_loss
from lt_lib.posthoc import TAUS, logit_adjustment, tau_normalise
from lt_lib.runs import RunConfig, RunsFailed, Store, config_from_profile, run, run_many
from lt_lib.runs.fingerprint import imported_modules
from lt_lib.runs.stems import Stems, plan
from lt_lib.training import Trainer, evaluate
from lt_lib.training.two_stage import retrain_classifier, second_stage


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    run(small_config(), store)
    return store


@pytest.fixture
def trained_epochs(monkeypatch):
    epochs, run_epoch = [], Trainer.run_epoch
    monkeypatch.setattr(
        Trainer, "run_epoch", lambda self, epoch: epochs.append(self.config.epochs) or run_epoch(self, epoch)
    )
    return epochs


def predictions(found, part="test"):
    split = found.config.split()
    return evaluate(found.load_model(), getattr(split, part), normalisation(split.train))


@pytest.mark.parametrize("kind", KINDS)
def test_the_edited_network_is_measured_and_loaded(store, kind):
    base, found = run(small_config(), store), run(with_after(KINDS[kind]), store)
    assert found.key != base.key
    seen = predictions(found)
    right = (seen.classes == seen.labels).double().mean()
    assert found.metrics["test"]["plain"] == pytest.approx(float(right))
    assert found.metrics["test"]["class_loss"] != base.metrics["test"]["class_loss"]
    assert {n: v.tolist() for n, v in found.history.items() if n != "nc3"} == {
        n: v.tolist() for n, v in base.history.items() if n != "nc3"
    }
    same = {
        n: torch.equal(v, base.weights()[n]) for n, v in found.weights().items() if not n.startswith("head")
    }
    assert all(same.values())
    assert run(small_config(), store).folder == base.folder  # untouched
    assert store.damage(found.key) is None


def test_the_edits_are_those_of_the_functions(store):
    base = run(small_config(), store)
    counts, seen = base.config.split().counts, predictions(base)
    adjusted = predictions(run(with_after({"name": "logit_adjustment", "tau": 0.7}), store))
    assert torch.allclose(adjusted.logits, logit_adjustment(seen.logits, counts, 0.7), atol=1e-5)
    head = base.load_model().head
    for bias, added in (("drop", 0), ("keep", head.bias)):
        found = run(with_after({"name": "tau_norm", "tau": 1, "bias": bias}), store)
        logits = seen.features @ tau_normalise(head.weight, 1).T + added
        assert torch.allclose(predictions(found).logits, logits, atol=1e-5)
        assert found.metrics["after"] == {"tau": 1}
    retrained, split = run(with_after(KINDS["retrained"]), store), base.config.split()
    stage = second_stage(base.config.training, epochs=2)
    wanted = retrain_classifier(
        base.load_model(), make_loss("ce", counts), split.train, stage, 0, normalisation(split.train)
    )
    assert torch.equal(retrained.weights()["head.weight"], wanted.weight)


def test_tau_0_changes_nothing(store):
    base, found = run(small_config(), store), run(with_after({"name": "logit_adjustment", "tau": 0}), store)
    assert {k: v for k, v in found.metrics.items() if k != "after"} == base.metrics


def test_tau_is_chosen_on_the_calibration_part(store):
    found = run(with_after(KINDS["chosen"]), store)
    split, grid, scores = (
        found.config.split(),
        found.metrics["after"]["grid"],
        found.metrics["after"]["scores"],
    )
    seen = predictions(run(small_config(), store), "calibration")
    for tau, score in zip(grid, scores, strict=True):
        right = logit_adjustment(seen.logits, split.counts, tau).argmax(1) == seen.labels
        recalls = [float(right[seen.labels == c].double().mean()) for c in range(10)]
        assert score == pytest.approx(sum(recalls) / 10)
    assert grid == list(TAUS)
    assert found.metrics["after"]["tau"] == grid[scores.index(max(scores))]
    assert found.metrics["calibration"]["balanced"] == pytest.approx(max(scores))


def test_the_base_is_trained_once_for_all_that_follow_it(tmp_path, trained_epochs):
    configs = [with_after(after) for after in KINDS.values()]
    found = run_many([*configs[:2], small_config(), *configs[2:]], Store(tmp_path), workers=1)
    assert sorted(trained_epochs) == [1] * 1 + [2] * 2 + [4] * 4
    assert [r.config for r in found] == [*configs[:2], small_config(), *configs[2:]]
    trained_epochs.clear()
    run(with_after({"name": "tau_norm", "tau": 0.5}), Store(tmp_path))
    assert trained_epochs == []


@pytest.mark.slow  # beside the same of plain runs, in test_processes
def test_workers_change_nothing(tmp_path, store):
    configs = [with_after(after) for after in KINDS.values()]
    two = run_many(configs, Store(tmp_path), workers=2)
    assert [bits(r) for r in two] == [bits(run(config, store)) for config in configs]
    assert len(Store(tmp_path).keys()) == len(configs) + 1  # the base is stored, too
    assert bits(run(small_config(), Store(tmp_path))) == bits(run(small_config(), store))


def test_runs_that_follow_come_last():
    base, other = small_config(), small_config(1)
    deferred = replace(base, loss={"name": "class_mean", "defer_epoch": 2})
    follow = [with_after(KINDS["adjusted"]), with_after(KINDS["normalised"])]
    alone = replace(other, after=KINDS["adjusted"])
    late = replace(deferred, after=KINDS["adjusted"])
    planned = plan([*follow, deferred, late, base, alone])
    assert [c for c, _ in planned] == [base, alone, deferred, *follow, late]
    wanted = {id(c): stems for c, stems in planned}
    assert (wanted[id(base)], wanted[id(deferred)], wanted[id(late)]) == ([2, 4], [2], [])


def test_a_follower_of_a_deferred_run_shares_its_stem(tmp_path):
    config = with_after(KINDS["adjusted"], loss="class_mean")
    config = replace(config, loss={"name": "class_mean", "defer_epoch": 2})
    assert Stems(config, Store(tmp_path)).name == Stems(config.base(), Store(tmp_path)).name
    run(config, Store(tmp_path))
    assert len(list((tmp_path / ".stems").iterdir())) == 1


def test_plain_runs_have_the_keys_of_a_world_without_the_field():
    config = small_config()
    assert config.base() is config
    assert "after" not in config.to_dict()
    assert not {"lt_lib.runs.edit", "lt_lib.training.two_stage", "lt_lib.posthoc"} & set(
        imported_modules(["lt_lib.runs.experiment"])
    )
    assert "lt_lib.runs.experiment" in imported_modules(["lt_lib.runs.edit"])
    edited = with_after("logit_adjustment")
    assert edited.base() == config
    assert RunConfig.from_dict(json.loads(json.dumps(edited.to_dict()))) == edited
    equal = [{"name": "logit_adjustment", "tau": 1}, {"name": "logit_adjustment"}, "logit_adjustment"]
    assert {with_after(after).key() for after in equal} == {edited.key()}
    assert len({with_after(after).key() for after in KINDS.values()} | {config.key()}) == len(KINDS) + 1
    assert "tau_norm" in with_after("tau_norm").describe()


def test_profiles_pass_it_on():
    config = config_from_profile(profiles.load("digits"), "ce", 0, after={"name": "tau_norm", "tau": 1})
    assert config.after == {"name": "tau_norm", "tau": 1, "bias": "drop"}
    assert config_from_profile(profiles.load("digits"), "ce", 0).after is None


CHILDREN = """
import os, sys
sys.path.insert(0, {here!r})
from after_runs import KINDS, with_after
from small_runs import die_at
from lt_lib.runs import Store, run

def die(step):
    die_at(step)
    run(with_after(KINDS["retrained"]), Store(os.path.join({root!r}, str(step))))

children = []
for step in {steps!r}:
    children.append(os.fork())
    if children[-1] == 0:
        die(step)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork and SIGKILL are POSIX")
def test_a_run_killed_in_either_stage_ends_with_the_same_bits(store, tmp_path, trained_epochs, run_forked):
    config = with_after(KINDS["retrained"])
    points = {5: [4, 4, 4, 2, 2], 14: [2, 2]}  # three steps an epoch -> what is left to train
    code = CHILDREN.format(here=str(Path(__file__).parent), steps=list(points), root=str(tmp_path))
    done = run_forked(code)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * 2, done.stderr
    for step, epochs in points.items():
        trained_epochs.clear()
        resumed = run(config, Store(tmp_path / str(step)))
        assert trained_epochs == epochs
        assert bits(resumed) == bits(run(config, store))


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (5, "`after` must be None, a name or a mapping"),
        ({"tau": 1}, "`after` must be None, a name or a mapping"),
        ("logit_adjust", "`the name of after`.*Did you mean `logit_adjustment`"),
        (
            {"name": "logit_adjustment", "taus": 1},
            "`an option of after logit_adjustment` must be one of name, tau; found `taus`. Did you mean",
        ),
        ({"name": "tau_norm", "tau": "test"}, '`tau` must be a number or "calibration"'),
        ({"name": "tau_norm", "tau": float("nan")}, "`tau` must be a number from -100 to 100"),
        ({"name": "tau_norm", "bias": "no"}, "`bias` must be one of drop, keep, scale"),
        ({"name": "crt", "features": "twice"}, "`features` must be one of augmented, once"),
        ({"name": "crt", "loss": 3}, "`loss` of `after` must be a name or a mapping"),
        ({"name": "crt", "training": 3}, "`training` of `after` must be a mapping"),
        ({"name": "lws", "training": {"threads": 2}}, "`a field of training in after`.*found `threads`"),
    ],
)
def test_bad_options_are_refused_when_they_are_set(after, sentence):
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        with_after(after)


def test_no_choice_without_calibration_data():
    entries = small_config().to_dict()
    entries["data"]["calibration"] = 0
    with pytest.raises(ValueError, match=r"chooses `tau` on calibration data.*test data must not choose"):
        RunConfig.from_dict({**entries, "after": "tau_norm"})
    assert RunConfig.from_dict({**entries, "after": {"name": "tau_norm", "tau": 1}}).after["tau"] == 1


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ({"name": "crt", "loss": "cee"}, "cee"),
        ({"name": "crt", "training": {"epochs": 0}}, "`epochs` must be a whole number"),
        ({"name": "crt", "loss": "bcl"}, "`bcl` trains further heads"),
        ({"name": "lws", "loss": {"name": "ce", "inverse": {}, "drw_epoch": 12}}, "`drw_epoch` .*12"),
        ({"name": "crt", "loss": "dr"}, "`dr` needs the fixed rows of an ETF head"),
    ],
)
def test_a_second_stage_that_cannot_be_is_refused_before_the_first(tmp_path, trained_epochs, after, sentence):
    with pytest.raises(RunsFailed, match=sentence):
        run_many([with_after(after)], Store(tmp_path), workers=1)
    assert trained_epochs == []


def test_a_network_with_a_norm_in_its_head_can_be_edited(tmp_path):
    settings = small_config(epochs=1).to_dict()
    settings |= {"net": {"depth": 8, "width": 2, "head": "etf", "unit": True, "batch_norm": True}}
    settings["net"]["width"] = 3  # a simplex of ten classes needs nine dimensions
    base = RunConfig.from_dict({**settings, "loss": "dr"})
    store = Store(tmp_path)
    seen = predictions(run(base, store))
    found = run(replace(base, after={"name": "logit_adjustment", "tau": 0.5}), store)
    wanted = logit_adjustment(seen.logits, base.split().counts, 0.5)
    assert torch.allclose(predictions(found).logits, wanted, atol=1e-5)
    retrained = run(replace(base, after=KINDS["retrained"]), store)
    assert torch.equal(predictions(retrained).features, seen.features)
