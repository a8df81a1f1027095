"""What the chapter's conclusions rest on: published values recomputed, and what its last run published."""

import json
from typing import Any

import pytest

from pipeline.layout import ROOT

PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / "11_effective_rank.json"
CIFAR, ISIC = "CIFAR-10, cross-entropy", "ISIC-2019, class-balanced"


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_the_published_energy_of_two_directions_fits_one_matrix_only(numbers: Any) -> None:
    published = numbers["published"]
    assert published[CIFAR]["energy"] == pytest.approx(71.8, abs=0.1)
    assert published[ISIC]["energy"] == pytest.approx(94, abs=0.2)  # 89 in print


def test_the_published_effective_ranks_fit_their_singular_values(numbers: Any) -> None:
    for name, stated in ((CIFAR, 3.98), (ISIC, 2.11)):
        assert numbers["published"][name]["low"] <= stated <= numbers["published"][name]["high"]
    assert numbers["published"][CIFAR]["null"] == pytest.approx(5.6, abs=0.1)
    assert numbers["published"][ISIC]["null"] == pytest.approx(4.4, abs=0.1)


def test_the_published_gains_fall_and_the_published_cuts_rise_from_ce_to_cb(numbers: Any) -> None:
    gain, cut = numbers["isic"]["gain"], numbers["isic"]["cut"]
    assert gain == pytest.approx([7.1, 2.3, 0.3])
    assert cut == pytest.approx([0.17, 0.21, 0.24], abs=0.005)


def test_noise_raises_low_ranks_and_lowers_the_highest(numbers: Any) -> None:
    noise = numbers["noise"]
    assert all(noise[k] == sorted(noise[k]) for k in ("1", "2"))
    assert noise["9"] == sorted(noise["9"], reverse=True)
    ends = [curve[-1] for curve in noise.values()]
    assert max(ends) - min(ends) < 1e-9  # pure noise has no memory


def test_ranks_are_ordered_as_the_theorem_says(numbers: Any) -> None:
    ranks = numbers["ranks"]
    for part in ("calibration", "test"):
        assert 1 <= ranks["rank"][part] <= ranks["rv"][part] <= ranks["algebraic"][part] <= 9


def test_the_noise_of_the_measurement_is_not_gaussian_of_its_shape(numbers: Any) -> None:
    ranks = numbers["ranks"]
    for part in ("calibration", "test"):
        assert ranks["split halves"][part] < 0.75 * ranks["Gaussian"][part]
        assert ranks["split halves"][part] == pytest.approx(ranks["own errors"][part], abs=0.4)


def test_sensitivities_are_mostly_signal_and_more_so_on_more_images(numbers: Any) -> None:
    signal = numbers["ranks"]["signal"]
    assert 0.4 < signal["calibration"] < signal["test"] < 1
    assert numbers["differences"]["raises"] < 0


def test_all_eigenpairs_are_certified_and_no_network_is_missing(numbers: Any) -> None:
    assert numbers["residual"] <= 0.05
    assert numbers["networks"] == 18
