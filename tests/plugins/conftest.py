"""Time limits for tests that run compilers, and the suite's cache of precompiled headers."""

from pathlib import Path

import pytest

TIMEOUT_S = 300
"""Time limit of a test: compilers are niced and wait for everyone else on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this directory the time limit, unless it has its own."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(autouse=True)
def _use_compiler_cache(compiler_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KTUNED_CACHE", str(compiler_cache))
    monkeypatch.delenv("CXX", raising=False)
