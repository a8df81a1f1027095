"""Options of the test run, and one seed for whatever a test draws without saying so."""

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--published",
        action="store_true",
        help="compare the numbers that the notebooks published when nbval ran them (`make test` does)",
    )


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Draw the same initial weights in every run: a failure can be seen twice."""
    torch.manual_seed(0)
