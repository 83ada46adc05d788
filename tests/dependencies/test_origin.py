"""Origins of code: installed code and what compilers cache counts by no content of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktuned.dependencies import origin
from ktuned.dependencies.code_observer import _find_own_places


@pytest.fixture(autouse=True)
def clear_caches() -> Iterator[None]:
    cached = (origin.find_installed_place, origin.is_foreign, origin.list_cache_directories, origin._is_site)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def test_a_directory_into_which_pip_installed_holds_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install --target`` makes a directory of packages of any name; one of sources beside it is none."""
    target, sources = tmp_path / "deps", tmp_path / "src"
    (target / "numba-1.0.dist-info").mkdir(parents=True)
    sources.mkdir()
    monkeypatch.setattr(sys, "path", [str(sources), str(target), *sys.path])
    assert origin.find_installed_place(str(target / "numba/core.py")) == (str(target), "numba")
    assert origin.is_foreign(str(target / "numba/_native.so"))
    assert not origin.is_foreign(str(sources / "numba/core.py"))


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"])
def test_code_in_a_compilers_cache_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A launcher that Triton compiled, or Inductor wrote, is made from other code, which counts."""
    monkeypatch.setenv(name, str(tmp_path / "cache"))
    assert origin.is_foreign(str(tmp_path / "cache/XYZ/__triton_launcher.so"))
    assert not origin.is_foreign(str(tmp_path / "kernel.py"))
    assert origin.is_foreign(str(Path.home() / ".triton/cache/XYZ/cuda_utils.so"))


def test_a_project_inside_a_cache_directory_counts_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout below ``~/.cache`` is still its author's code; what compilers keep beside it is not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = tmp_path / "triton" / "project"
    assert _find_own_places(root / "tune_it.py", root) == (f"{root}/",)
    assert _find_own_places(Path("/src/project/tune_it.py"), Path("/src/project")) == ()
