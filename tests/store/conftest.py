"""A store of its own for each test."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ktuned.store.database import Store


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return where the test's database is, or will be."""
    return tmp_path / "state" / "ktuned.db"


@pytest.fixture
async def store(database: Path) -> AsyncGenerator[Store]:
    """Open a store and close it after the test."""
    async with Store.open(database) as opened:
        yield opened
