"""One cache of precompiled headers for all tests here: making one takes longer than most of them."""

import os
from pathlib import Path

import pytest

TIMEOUT_S = 300
"""How long a test here may take: compilers are niced, and on a busy machine wait for everyone else."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this directory its time, unless it asks for another."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shared cache's directory, which compiles of several processes may use at a time."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return tmp_path_factory.mktemp("compiler-cache")
    shared = tmp_path_factory.getbasetemp().parent / "compiler-cache"
    shared.mkdir(mode=0o700, exist_ok=True)
    return shared


@pytest.fixture(autouse=True)
def _use_compiler_cache(compiler_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KTUNED_CACHE", str(compiler_cache))
    monkeypatch.delenv("CXX", raising=False)
