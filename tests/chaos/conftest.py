"""Every kind of failure at once. Its tests run with ``--chaos=full`` alone (``make chaos``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

_ROWS = pytest.StashKey[list[dict[str, Any]]]()

TableRow = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the amount of chaos and the seed."""
    parser.addoption("--chaos", choices=("slice", "full"), default="slice", help="how much chaos (default: slice)")
    parser.addoption("--chaos-seed", type=int, default=3, help="what chooses moments and victims (default: 3)")


@pytest.fixture
def seed(request: pytest.FixtureRequest, only_in_chaos: None) -> int:
    """Return the seed of the command line; the tests that take it are too long for `make test`."""
    seed: int = request.config.getoption("chaos_seed")
    return seed


@pytest.fixture
def table_row(request: pytest.FixtureRequest) -> Iterator[TableRow]:
    """Return a row of the table that is printed at the end; a failing test's figures are printed, too."""
    row: TableRow = {"scenario": request.node.name.removeprefix("test_")}
    yield row
    if len(row) > 1:
        request.config.stash.setdefault(_ROWS, []).append(row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    terminalreporter.section("chaos")
    for row in rows:
        terminalreporter.write_line(str(row.pop("scenario")))
        for name, value in row.items():
            terminalreporter.write_line(f"  {name:<34} {value}")
