"""How long the author works: a few edits, or, with ``--author=full``, a part of five hundred (``make chaos``)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.author.project import FILES

SLICE = (
    *("shadowing header", "star import", "comment", "native read", "loaded library", "shadowing package"),
    *("hidden name", "dangling link", "modification time", "standard name"),
)
"""Edits of the slice, each of which concerns one kernel at most: starting what measures it is most of its time."""

FULL_EDITS = 500


@dataclass(frozen=True)
class Script:
    """The kernel files that an author has, the edits, and what chooses them.

    An edit is its kind, or ``None`` for one that the seed chooses. After ``minutes`` no edit begins. One that is not
    whole is a share of the edits, too few for a statement about how many re-tunes are needless.
    """

    files: tuple[str, ...]
    edits: tuple[str | None, ...]
    seed: str
    minutes: float
    is_whole: bool = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; they are known when this directory is named on the command line."""
    parser.addoption("--author", choices=("slice", "full"), default="slice", help="how many edits (default: slice)")
    parser.addoption("--author-seed", type=int, default=7, help="what chooses the edits (default: 7)")
    parser.addoption("--author-edits", type=int, default=FULL_EDITS, help="edits of all parts (default: 500)")
    parser.addoption("--author-part", default="1/1", metavar="I/N", help="the author who makes the I-th of N shares")
    parser.addoption("--author-minutes", type=float, default=110.0, help="begin no edit after this time")


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Script:
    """Return what to do."""
    config = request.config
    # Where the whole suite runs, this file is read after the command line.
    seed, minutes = config.getoption("author_seed", 7), config.getoption("author_minutes", 110.0)
    if config.getoption("author", "slice") != "full":
        return Script(("tune_e.py", "tune_f.py"), SLICE, str(seed), minutes)
    part, _, parts = config.getoption("author_part").partition("/")
    edits = share(config.getoption("author_edits"), int(part), int(parts))
    return Script(tuple(FILES), (None,) * edits, f"{seed}:{part}", minutes, is_whole=parts == "1")


def share(edits: int, part: int, parts: int) -> int:
    """Return how many of all edits one part makes; the parts are counted from 1."""
    assert 1 <= part <= parts, f"--author-part: there is no part {part} of {parts}"
    return edits // parts + (part <= edits % parts)
