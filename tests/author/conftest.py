"""How long the author works: some edits, or, with ``--author=full``, fifty."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; they are known when this directory is named on the command line."""
    parser.addoption("--author", choices=("slice", "full"), default="slice", help="how many edits (default: slice)")
    parser.addoption("--author-seed", type=int, default=7, help="what chooses the edits (default: 7)")


@pytest.fixture
def edits(request: pytest.FixtureRequest) -> int:
    """Return how many edits to make."""
    return 50 if request.config.getoption("author", "slice") == "full" else 8


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return what chooses them."""
    return int(request.config.getoption("author_seed", 7))
