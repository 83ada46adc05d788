"""How far the chaos goes: a slice of about a minute, or, with ``--chaos=full`` (``make chaos``), all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

_ROWS = pytest.StashKey[list[dict[str, Any]]]()

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much of each kind there is, whether times are judged, and what the dice start from."""

    is_full: bool
    seed: int

    def of(self, count: int) -> int:
        """Return a count, or a tenth of it in the slice, but one at least."""
        return count if self.is_full else -(-count // 10)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how far to go, and with which dice."""
    parser.addoption("--chaos", choices=("slice", "full"), default="slice", help="how much chaos (default: slice)")
    parser.addoption("--chaos-seed", type=int, default=3, help="what chooses moments and victims (default: 3)")


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """Return what the command line asks for."""
    # Where the whole suite runs, this file is read after the command line.
    is_full = request.config.getoption("chaos", "slice") == "full"
    return Scale(is_full, request.config.getoption("chaos_seed", 3))


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """Hand out a row of the table that is printed at the end; what a test found before it failed is in it too."""
    found: Row = {"scenario": request.node.name.removeprefix("test_")}
    yield found
    if len(found) > 1:
        request.config.stash.setdefault(_ROWS, []).append(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    terminalreporter.section("chaos")
    for found in rows:
        terminalreporter.write_line(str(found.pop("scenario")))
        for name, value in found.items():
            terminalreporter.write_line(f"  {name:<34} {value}")
