"""The daemon of each end-to-end test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Run a daemon with the fake backend in directories of its own."""
    with Daemon(tmp_path) as process:
        yield process
