"""What a compiler's cache keeps decides nothing; the settings beside it do, and so does the compiler behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.dependencies.origin import is_of_cache, list_cache_directories


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, ".cache/ccache"),
        ({}, ".ccache"),
        ({}, ".cache/sccache"),
        ({"CCACHE_DIR": "mine"}, "mine"),
        ({"SCCACHE_DIR": "mine"}, "mine"),
        ({"XDG_CACHE_HOME": "other"}, "other/ccache"),
    ],
)
def test_files_of_ccache_and_sccache_decide_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], place: str
) -> None:
    """Neither the directory nor what is renamed in it; ``ccache.conf`` may name another compiler, and counts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CCACHE_DIR", "SCCACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    list_cache_directories.cache_clear()
    try:
        assert is_of_cache(str(tmp_path / place))
        assert is_of_cache(str(tmp_path / place / "4/3/stats.tmp.oQUKsu.tmp"))
        assert not is_of_cache(str(tmp_path / place / "ccache.conf"))
        assert not is_of_cache(str(tmp_path / f"{place}-of-mine" / "data.bin"))
    finally:
        list_cache_directories.cache_clear()
