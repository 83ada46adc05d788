"""How long the author works: a few edits, or, with ``--author=full``, five hundred (``make chaos``)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.author.project import FILES

SLICE = ("shadowing header", "star import", "comment", "include by macro", "class attribute", "beside the root")
"""Edits of the slice, each of which concerns one kernel at most: starting what measures it is most of its time."""

FULL_EDITS = 500


@dataclass(frozen=True)
class Script:
    """The kernel files that an author has, and the edits: their kinds, or ``None`` for one that the seed chooses."""

    files: tuple[str, ...]
    edits: tuple[str | None, ...]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; they are known when this directory is named on the command line."""
    parser.addoption("--author", choices=("slice", "full"), default="slice", help="how many edits (default: slice)")
    parser.addoption("--author-seed", type=int, default=7, help="what chooses the edits (default: 7)")
    parser.addoption("--author-edits", type=int, default=FULL_EDITS, help="edits of a full run (default: 500)")


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Script:
    """Return what to do."""
    if request.config.getoption("author", "slice") == "full":
        return Script(tuple(FILES), (None,) * int(request.config.getoption("author_edits", FULL_EDITS)))
    return Script(("tune_e.py", "tune_f.py"), SLICE)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return what chooses them."""
    return int(request.config.getoption("author_seed", 7))
