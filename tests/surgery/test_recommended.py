"""The recommended surgery, and the pieces of the search that chose it."""

import re
from pathlib import Path

import pytest
import torch
from toy_surgery import CLASSES, bits, clusters, data, same_bits, trained_net

from benchmarks import _recommended as search
from benchmarks import _recommended_report as page
from benchmarks import recommended
from lt_lib.surgery import Calibration, SurgeryConfig, class_pressure, operate

HESSIAN, CALIBRATION = data()


def rows(*values: tuple[float, float]) -> list[dict[str, float]]:
    return [{"balanced": a, "plain": a, "sigma": s, "worst": a - s} for a, s in values]


def test_the_rule_takes_the_least_sigma_among_ties_of_the_best() -> None:
    scores = {
        "best": rows((0.80, 0.20), (0.82, 0.22), (0.81, 0.21)),
        "tied, more sigma": rows((0.79, 0.25), (0.83, 0.25), (0.80, 0.25)),
        "tied, less sigma": rows((0.79, 0.15), (0.83, 0.15), (0.80, 0.15)),
        "worse, least sigma": rows((0.70, 0.01), (0.71, 0.01), (0.72, 0.01)),
    }
    assert search.choose(scores) == (
        "tied, less sigma",
        ["best", "tied, more sigma", "tied, less sigma"],
    )
    del scores["tied, less sigma"]
    assert search.choose(scores)[0] == "best"


def test_the_grid_holds_the_published_and_the_recommended_configuration() -> None:
    assert len(search.GRID) == 8
    assert {(p, n) for p, n in recommended.PUBLISHED.values()} <= set(search.GRID.values())
    written = search.settings(search.WRITTEN, 5, 1.0)
    assert written == SurgeryConfig.as_written(10, 5, radius=0.01, minimum=0.001, radius_unit="nats")
    released = search.settings(search.RELEASED, 5, 60.0)
    assert released.eps == pytest.approx((2 * 0.12 / 60) ** 0.5 / 2)
    assert released.eps_unit == "length"
    text = Path("benchmarks/results/recommended.md").read_text(encoding="utf-8")
    chosen = re.search(r"\*\*Chosen: (.*)\.\*\*", text)
    assert chosen is not None
    path, iterations = search.GRID[chosen[1]]
    assert SurgeryConfig.recommended(10) == search.settings(path, iterations, 1.0)


def test_halves_share_no_image_and_each_class_alike() -> None:
    images, labels = clusters(203, seed=3)
    first, second = search.halves(Calibration(images, labels, CLASSES), seed=1)
    both = torch.cat([first.images, second.images])
    assert len(torch.unique(both, dim=0)) == len(both) == 203
    assert int((first.counts - second.counts).abs().max()) <= 1


def test_a_walk_gives_the_weights_on_its_way_and_is_read_from_its_file(tmp_path: Path) -> None:
    net = trained_net().eval()
    before, kept = bits(net), search.Kept(tmp_path)
    config = SurgeryConfig.differentiable(CLASSES, 2, spikes=2, tol=0.1)
    states = kept.get("a walk", lambda: search.walked(net, HESSIAN, CALIBRATION, config, [1, 2]))
    assert same_bits(before, bits(net))
    operate(net, HESSIAN, CALIBRATION, SurgeryConfig.differentiable(CLASSES, 1, spikes=2, tol=0.1))
    assert same_bits(states[1], bits(net))
    assert not same_bits(states[1], states[2])
    again = kept.get("a walk", lambda: pytest.fail("it was done already"))
    assert same_bits(again[2], bits(search.with_weights(net, states[2])))


def test_verdicts_follow_the_interval_of_the_paired_difference() -> None:
    measured = {
        "base": rows((0.70, 0.25), (0.72, 0.27), (0.71, 0.26)),
        "even": rows((0.71, 0.15), (0.71, 0.17), (0.71, 0.16)),
    }
    assert page.verdict(measured, "even", "sigma", "base", "lower") == ("-10.0 [-10.0, -10.0]", "undecided")
    measured["even"][0]["sigma"] = 0.16
    assert page.verdict(measured, "even", "sigma", "base", "lower")[1] == "holds"
    assert page.verdict(measured, "even", "sigma", "base", "higher")[1] == "fails"
    assert page.verdict(measured, "even", "plain", "base", "higher") == ("0.0 [-2.5, 2.5]", "undecided")


def test_the_script_goes_from_training_to_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LT_RUNS", str(tmp_path / "runs"))
    name = f"{search.SOFT}, 2 iterations"
    monkeypatch.setattr(search, "GRID", {name: (search.SOFT, 2)})
    for module in (search, recommended):
        monkeypatch.setattr(module, "GRID", search.GRID)
        monkeypatch.setattr(module, "MARKS", {search.SOFT: [2]})
    monkeypatch.setattr(recommended, "SAME", {"tol": 0.3, "spikes": 2})
    kinds = ("as written", "as released", "differentiable")
    monkeypatch.setattr(recommended, "PUBLISHED", dict.fromkeys(kinds, (search.SOFT, 2)))
    call = ["--quick", "--seeds=2", f"--folder={tmp_path / 'kept'}", f"--results={tmp_path / 'pages'}"]
    assert recommended.main(call) == name
    assert capsys.readouterr().out.count("s of CPU") == 4  # two networks, as trained and with biases
    text = (tmp_path / "pages" / "recommended-quick.md").read_text(encoding="utf-8")
    assert f"**Chosen: {name}.**" in text
    assert text.count("| FB") == len(page.TRIALS)
    with pytest.raises(SystemExit, match="other settings"):
        recommended.main([*call, "--images=32"])


def test_the_recommended_surgery_lifts_what_it_presses_for_without_raising_sigma() -> None:
    net = trained_net()
    before = bits(net)
    done = operate(net, HESSIAN, CALIBRATION, SurgeryConfig.recommended(CLASSES))
    assert done.accepted >= 1
    for step in (step for step in done.trace if step.accepted):
        assert float(class_pressure(step.before) @ (step.after - step.before)) > 0
        assert float(step.after.std(correction=0)) <= float(step.before.std(correction=0)) + 1e-9
    assert done.after.mean() > done.before.mean()
    done.restore()
    assert same_bits(before, bits(net))


def test_what_is_recommended_can_be_changed() -> None:
    config = SurgeryConfig.recommended(7, iterations=1, tol=1e-2)
    assert (config.spikes, config.iterations, config.tol) == (6, 1, 1e-2)
    with pytest.raises(ValueError, match="iterations"):
        SurgeryConfig.recommended(7, iterations=0)
