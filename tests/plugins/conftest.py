"""One cache of precompiled headers for all tests here: making one takes longer than most of them."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shared cache's directory."""
    return tmp_path_factory.mktemp("compiler-cache")


@pytest.fixture(autouse=True)
def _use_compiler_cache(compiler_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KTUNED_CACHE", str(compiler_cache))
    monkeypatch.delenv("CXX", raising=False)
