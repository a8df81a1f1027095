"""ResNet-32 at the widths that the literature uses, and the page that lists them."""

import re
from pathlib import Path

import pytest

from lt_lib.nets import resnet

PAGE = Path(__file__).resolve().parents[2] / "book" / "networks.md"
COUNTS = {16: (464_154, 470_004), 32: (1_849_898, 1_861_508), 64: (7_386_186, 7_409_316)}


def by_hand(width: int, classes: int) -> int:
    """Parameters of ResNet-32: convolutions, two for each BatchNorm channel, head."""
    stem, first = 9 * 3 * width, 10 * 9 * width**2
    second = 9 * width * 2 * width + 9 * 9 * (2 * width) ** 2
    third = 9 * 2 * width * 4 * width + 9 * 9 * (4 * width) ** 2
    norms = 2 * (11 * width + 10 * 2 * width + 10 * 4 * width)
    return stem + first + second + third + norms + classes * (4 * width + 1)


@pytest.mark.parametrize("width", COUNTS)
@pytest.mark.parametrize("classes", [10, 100])
def test_parameter_counts(width: int, classes: int) -> None:
    net = resnet(32, width, classes)
    found = sum(p.numel() for p in net.parameters())
    assert found == by_hand(width, classes) == COUNTS[width][classes == 100]


def test_floors_for_a_hundred_classes() -> None:
    floors = [resnet(32, width, 100).nc2_floor for width in COUNTS]
    assert floors == pytest.approx([(2 - 2 * (64 / 99) ** 0.5) ** 0.5, 0, 0])


def test_the_page_states_these_numbers() -> None:
    rows = [[c.strip() for c in line.strip("| \n").split("|")] for line in PAGE.read_text().splitlines()]
    table = {int(row[0]): row for row in rows if len(row) == 5 and row[0].isdigit()}
    assert table.keys() == COUNTS.keys()
    for width, (_, features, few, many, floor) in table.items():
        net = resnet(32, width, 100)
        assert int(features) == net.dim
        assert [int(re.sub(r"\D", "", c)) for c in (few, many)] == list(COUNTS[width])
        assert float(floor) == pytest.approx(net.nc2_floor, abs=5e-4)
