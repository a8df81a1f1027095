import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_lib.posthoc.frontier import frontier, frontier_area, sigma_at

# one network, six methods: bias fits stopped early, later, last; logit adjustment twice; surgery
MEASURED = [(82.6, 13.6), (80.9, 8.3), (79.2, 6.9), (83.9, 15.7), (84.0, 10.2), (80.8, 16.9)]


def test_points_of_one_network():
    assert frontier(MEASURED) == (2, 1, 4)  # logit adjustment dominates the early bias fit and surgery
    assert sigma_at(MEASURED, 82) == 10.2
    assert math.isnan(sigma_at(MEASURED, 84.1))


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(points)
def test_the_frontier_is_what_the_definition_says(rows):
    def beats(a, b):
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    wanted = {row for row in rows if not any(beats(other, row) for other in rows)}
    found = [rows[i] for i in frontier(rows)]
    assert set(found) == wanted
    assert len(found) == len(wanted)
    assert found == sorted(found)


@settings(max_examples=50, deadline=None)
@given(points)
def test_the_area_is_that_of_the_unit_cells_that_are_dominated(rows):
    cells = sum(
        any(a >= i + 1 and s <= j for a, s in rows) for i in range(1, 6) for j in range(5)
    )  # cell [i, i + 1] x [j, j + 1], within accuracy above 1 and sigma below 5
    assert frontier_area(rows, (1, 5)) == pytest.approx(cells)


@pytest.mark.parametrize("rows", [[], [(1, 2, 3)], [(1, math.nan)], [1, 2]])
def test_what_are_no_points_is_refused(rows):
    with pytest.raises(ValueError, match="finite pairs"):
        frontier(rows)
