"""The scale of chaos: a slice of about a minute, or all of it with ``--chaos=full`` (``make chaos``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

_ROWS = pytest.StashKey[list[dict[str, Any]]]()

TableRow = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """The number of repetitions, whether times are judged, and the seed."""

    is_full: bool
    seed: int

    def scale_count(self, count: int) -> int:
        """Return a count; in the slice a tenth of it, but one at least."""
        return count if self.is_full else -(-count // 10)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the scale and the seed."""
    parser.addoption("--chaos", choices=("slice", "full"), default="slice", help="how much chaos (default: slice)")
    parser.addoption("--chaos-seed", type=int, default=3, help="what chooses moments and victims (default: 3)")


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """Return the scale that the command line requests."""
    # Where the whole suite runs, this file is read after the command line.
    is_full = request.config.getoption("chaos", "slice") == "full"
    return Scale(is_full, request.config.getoption("chaos_seed", 3))


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
