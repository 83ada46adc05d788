"""A daemon for each end-to-end test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Run a daemon that knows the fake backend, in directories of its own."""
    with Daemon(tmp_path) as running:
        yield running
