"""The store of each test."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ktuned.store.database import Store


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the path of the test's database, which may not exist yet."""
    return tmp_path / "state" / "ktuned.db"


@pytest.fixture
async def store(database: Path) -> AsyncGenerator[Store]:
    async with Store.open(database) as opened:
        yield opened
