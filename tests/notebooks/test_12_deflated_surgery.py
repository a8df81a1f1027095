"""The chapter's theorems on small problems, and what its last run published."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from lt_lib.curvature import MatrixOperator, deflate, lanczos
from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "12_deflated_surgery.json"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def stale(move: float, m: int = 4, size: int = 60) -> dict[str, Tensor]:
    """Deflate a random matrix that has moved on from the one whose leading eigenvectors Q are."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2))
    old = a @ a.T / size + torch.diag(torch.linspace(8, 0, size, dtype=torch.float64))
    new = old + move * (b + b.T) / size**0.5
    q = torch.linalg.eigh(old)[1][:, -m:]
    inner = q.T @ new @ q
    residual = new @ q - q @ inner
    pairs = lanczos(deflate(MatrixOperator(new), q.T.contiguous()), 6, tol=1e-10).require_converged()
    rho = (pairs.vectors @ new - pairs.values[:, None] * pairs.vectors).norm(dim=1)
    return {"q": q, "new": new, "change": new - old, "inner": inner, "residual": residual, "mu": pairs.values,
            "v": pairs.vectors, "rho": rho, "values": torch.linalg.eigvalsh(new).flip(0)}  # fmt: skip


@pytest.mark.parametrize("move", [0.01, 0.3])
def test_a_stale_basis_keeps_the_bounds_of_its_theorem(move: float) -> None:
    s = stale(move)
    size = torch.linalg.matrix_norm(s["residual"], 2)
    assert torch.allclose(s["rho"], (s["v"] @ s["residual"]).norm(dim=1), atol=1e-7)  # part 2
    assert bool((s["rho"] <= size + 1e-7).all())
    nearest = (s["mu"][:, None] - s["values"]).abs().min(1).values
    assert bool((nearest <= s["rho"] + 1e-9).all())
    rows = torch.eye(60, dtype=torch.float64) - s["q"] @ s["q"].T
    merged = torch.cat([torch.linalg.eigvalsh(s["inner"]), torch.linalg.eigvalsh(rows @ s["new"] @ rows)])
    zeros = merged.abs().argsort()[:4]  # of the span of Q
    kept = merged[[i for i in range(64) if i not in zeros.tolist()]].sort(descending=True).values
    assert float((kept - s["values"]).abs().max()) <= float(size) + 1e-9  # part 1
    assert bool((s["mu"] <= s["values"][:6] + 1e-9).all())  # part 3
    assert bool((s["mu"] >= s["values"][4:10] - 1e-9).all())
    assert torch.allclose(s["residual"], rows @ s["change"] @ s["q"], atol=1e-9)  # part 4


def test_the_error_of_a_stale_eigenvalue_is_bounded_by_the_square_of_its_residual() -> None:
    s = stale(0.02)
    tested = 0
    for mu, rho in zip(s["mu"], s["rho"], strict=True):
        at = int((s["values"] - mu).abs().argmin())
        above, value, below = s["values"][at - 1], s["values"][at], s["values"][at + 1]
        if below < mu < above:
            assert -(rho**2) / (above - mu) - 1e-9 <= value - mu <= rho**2 / (mu - below) + 1e-9
            tested += 1
    assert tested >= 4


def test_a_fitted_step_predicts_more_than_any_step_can_gain_in_the_mean() -> None:
    generator, r = torch.Generator().manual_seed(0), 0.3
    truth = torch.linspace(1, -1, 12, dtype=torch.float64)
    excess = {}
    for k in (3, 12):
        noise = torch.randn(20_000, k, generator=generator, dtype=torch.float64)
        z = truth[:k] + noise
        size = z.norm(dim=1)
        predicted, gained = r * size, r * (z @ truth[:k]) / size
        best = r * float(truth[:k].norm())
        assert bool((gained <= best + 1e-12).all())
        assert float(predicted.mean()) > best
        assert float((size * (predicted - gained)).mean()) == pytest.approx(r * k, rel=0.05)
        excess[k] = float((predicted - gained).mean())
    assert excess[12] > 1.5 * excess[3]


def test_all_directions_are_certified_and_one_phase_is_joint_surgery(numbers: Any) -> None:
    assert numbers["certified"] == numbers["wanted"] == 99
    assert numbers["positive"] is True
    assert numbers["one_phase_is_joint"] is True
    assert numbers["restored"] is True
    assert numbers["angle"] < 2  # degrees; both runs are certified, one to 0.05


def test_stale_deflation_keeps_the_bounds_of_the_theorem(numbers: Any) -> None:
    assert numbers["interlaced"] is True
    assert numbers["within_residual"] is True
    loops = numbers["loops"]
    assert loops["certified anew"]["residual"] < 0.01
    assert loops["stale"]["residual"] > 5 * loops["certified anew"]["residual"]
    assert loops["stale"]["products"] < loops["certified anew"]["products"]


def test_few_bits_cost_what_rounding_says(numbers: Any) -> None:
    for name, eps in (("float16", 2**-11), ("bfloat16", 2**-8)):
        entry = numbers[f"stored.{name}"]
        assert entry["gram"] < eps
        assert entry["skew"] < 10 * eps
    assert numbers["stored.float32"]["plain"] < 1e-5


def test_a_step_lowers_sigma_and_flatters_itself(numbers: Any) -> None:
    gains = numbers["gains"]
    assert max(gains["energy 99 test"], gains["energy 15 test"]) < 0.005
    assert gains["energy 99 calibration"] < gains["energy 15 calibration"] + 0.01
    assert gains["energy 99 calibration"] < gains["energy 99 test"] + 0.01
    assert numbers["signal"]["2"] < numbers["signal"]["8"] < 1


def test_the_bias_fit_on_the_same_images_is_ahead(numbers: Any) -> None:
    table = numbers["table"]
    assert table["bias fit"]["sigma"] < table["surgery, 99 directions"]["sigma"]
    assert table["bias fit"]["balanced"] > table["surgery, 99 directions"]["balanced"]
