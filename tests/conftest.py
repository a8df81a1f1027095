"""Options of the test run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--published",
        action="store_true",
        help="compare the numbers that the notebooks published when nbval ran them (`make test` does)",
    )
