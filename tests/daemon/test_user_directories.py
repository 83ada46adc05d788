"""The user's directories: one rule for daemon, workers, commands and applications."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from ktuned.cli.spawn import state_directory
from ktuned.daemon import load_settings
from ktuned.model import SettingsError
from ktuned.observer.library import LibraryUnavailable, build_library
from ktuned.user_directories import NoHomeDirectory, UserDirectories, find_user_directories


@pytest.fixture
def without_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the user one without an entry in /etc/passwd and without the variables."""

    def refuse(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", refuse)
    for name in ("HOME", "KTUNED_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "state", "cache", "config"),
    [
        ({"KTUNED_HOME": "/k", "HOME": "/h"}, "/k", "/k/cache", "/k"),
        ({"KTUNED_HOME": "~/k", "HOME": "/h"}, "/h/k", "/h/k/cache", "/h/k"),
        ({"HOME": "/h"}, "/h/.local/state/ktuned", "/h/.cache/ktuned", "/h/.config/ktuned"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/h/.local/state/ktuned", "/c/ktuned", "/h/.config/ktuned"),
        ({"HOME": "/h", "XDG_STATE_HOME": "s"}, "/h/.local/state/ktuned", "/h/.cache/ktuned", "/h/.config/ktuned"),
        (
            {"XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c", "XDG_CONFIG_HOME": "/d"},
            "/s/ktuned",
            "/c/ktuned",
            "/d/ktuned",
        ),
    ],
)
def test_each_directory_follows_its_variable(environment: dict[str, str], state: str, cache: str, config: str) -> None:
    """The order is KTUNED_HOME, an absolute XDG variable, HOME."""
    assert find_user_directories(environment) == UserDirectories(Path(state), Path(cache), Path(config))


@pytest.mark.usefixtures("without_name")
@pytest.mark.parametrize("find", [load_settings, state_directory])
def test_without_a_home_there_is_one_line_with_the_remedy(find: object) -> None:
    """There is neither a traceback nor a directory ``~``."""
    assert callable(find)
    with pytest.raises(SettingsError, match="there is no home directory") as refused:
        find()
    assert "KTUNED_HOME" in str(refused.value.hint)
    with pytest.raises(NoHomeDirectory):
        find_user_directories()


@pytest.mark.usefixtures("without_name")
def test_a_user_without_a_name_needs_ktuned_home_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The observer's library is found there, too."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    assert load_settings().state == tmp_path
    build_library.cache_clear()
    try:
        assert build_library().parent == tmp_path / "cache"
    finally:
        build_library.cache_clear()


@pytest.mark.parametrize("name", ["my cache", "c:d", "tab\tbed"])
def test_a_cache_path_that_ld_preload_cannot_hold_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Workers get no observer, and the doctor has the reason."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path / name))
    build_library.cache_clear()
    try:
        with pytest.raises(LibraryUnavailable, match="splits LD_PRELOAD"):
            build_library()
    finally:
        build_library.cache_clear()
