"""Pieces of the benchmarks of curvature that no one would notice to be wrong in a long run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import _eigenpairs, _eigenpairs_report, many_spikes
from benchmarks._well_posed import KINK, well_posed
from lt_lib.curvature import HessianOperator, lanczos, verify

ROOT = Path(__file__).resolve().parents[1]


def row(gradients: float, residual: float = 1e-4, products: int = 20, product: float = 2.0) -> dict[str, Any]:
    return {
        "products": products,
        "cpu": gradients / 2,
        "wall": gradients,
        "gradients": gradients,
        "product": product,
        "peak": 500.0,
        "residual": residual,
        "passed": 9 if residual <= 1e-3 else 8,
        "values": [1.0] * 9,
    }


ROWS = {
    "lt_lib": [row(40.0), row(44.0), row(42.0)],
    "curvlinops + eigsh": [row(105.0, products=25)],
    "hessian-eigenthings, default": [row(60.0, residual=0.1)],
    "hessian-eigenthings, 24 steps": [row(84.0)],
}
STEP = {"energy": 0.01, "warm": 15, "cold": 20, "length": 0.01, "moved": 0.02, "residual": 5e-4}
WARM = [STEP | {"energy": 1e-4, "warm": 10}, STEP]


def test_figures_leave_out_peers_that_fail() -> None:
    found = list(_eigenpairs_report.ratios(ROWS, WARM, 1e-3).values())
    assert found == pytest.approx([2.0, 0.8, 2.0, 0.75])  # against 84 gradients, not the 60 of a failed run
    assert list(_eigenpairs_report.ratios({"lt_lib": ROWS["lt_lib"]}, [], 1e-3).values()) == [2.0]


def test_the_table_shows_failures_and_what_is_missing(tmp_path: Path) -> None:
    text = _eigenpairs_report.table("A case", ROWS, ["PyHessian"], WARM, 1e-3)
    assert (
        "| hessian-eigenthings, default | 20 | 30.0 | 60.0 | 60.0 | 2.00 | 500 | 1.0e-01 | **8 of 9** |"
        in text
    )
    assert "42.0 (40 to 44)" in text
    assert "| PyHessian | not installed |" in text
    assert "| 0.01 | 0.01 | 2.0 % | 20 | 15 | 0.75 | 5.0e-04 |" in text
    if _eigenpairs_report.picture({"A case": ROWS}, 1e-3, tmp_path / "a.svg"):
        assert "fails" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(("first", "least"), [(24, 24), (20, 24), (30, 24), (60, 24), (10, None)])
def test_the_fewest_steps_that_pass(first: int, least: int | None) -> None:
    limit = 20 if least is None else 54
    assert _eigenpairs.fewest_passing(first, limit, lambda steps: steps >= 24) == least


def test_residuals_of_the_benchmark_are_those_of_the_hessian() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    x, y = torch.randn(20, 5).double(), torch.randint(3, (20,))
    operator = HessianOperator(net, x, y)
    pairs = verify(operator, lanczos(operator, 4, tol=1e-2))
    found = _eigenpairs.residuals(net, x, y, _eigenpairs.Pairs(pairs.values, pairs.vectors, 0))
    torch.testing.assert_close(torch.tensor(found).double(), pairs.residuals, rtol=1e-4, atol=1e-10)


def test_many_spikes_go_on_after_a_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--quick", "--images=12", "--pairs=4", "--epochs=1", "--save=6", f"--results={tmp_path}"]
    here, whole = f"--folder={tmp_path / 'a'}", f"--folder={tmp_path / 'b'}"
    with pytest.raises(SystemExit, match="Stopped after 8"):
        many_spikes.main([*common, here, "--stop=8"])
    resumed = many_spikes.main([*common, here])
    assert "going on" in capsys.readouterr().out
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "net.pt").rename(tmp_path / "b" / "net.pt")
    once = many_spikes.main([*common, whole])
    assert bool(once.converged.all())
    assert once.verified
    assert torch.equal(resumed.vectors, once.vectors)
    assert "4 of 4" in (tmp_path / "many-spikes-quick.md").read_text()
    assert json.loads((tmp_path / "b" / "log.json").read_text())["peak"] > 0
    with pytest.raises(SystemExit, match="other arguments"):
        many_spikes.main([*common, here, "--tol=1e-2"])


def test_images_at_a_kink_are_passed_over() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2, 2, 0)
    )
    x = torch.randn(40, 1, 6, 6)
    before = net[0](x).detach()
    with torch.no_grad():
        net[0].bias[0] -= before[3, 0, 1, 1]  # puts a unit of image 3 on its kink
    kept = well_posed(net, x, 30).tolist()
    assert 3 not in kept
    assert len(kept) == 30
    clear = [(net[0](x[i]).abs() > KINK).all() for i in kept]
    assert all(clear)
    with pytest.raises(ValueError, match="kinks, 41 were asked"):
        well_posed(net, x, 41)


def test_the_book_shows_tables_that_are_there():
    shown = {
        name
        for page in (ROOT / "book").glob("*.md")
        for name in re.findall(r"\{include\} results/([\w-]+)\.txt", page.read_text(encoding="utf-8"))
    }
    assert shown
    assert shown <= {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md")}
