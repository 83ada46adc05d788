"""The user's directories for ktuned: one rule for the daemon, its workers, commands and applications.

=============  ====================  ============================================
directory      with ``KTUNED_HOME``  otherwise, by the XDG base directories
=============  ====================  ============================================
state          itself                ``$XDG_STATE_HOME/ktuned``, ``~/.local/state/ktuned``
cache          ``cache`` in it       ``$XDG_CACHE_HOME/ktuned``, ``~/.cache/ktuned``
configuration  itself                ``$XDG_CONFIG_HOME/ktuned``, ``~/.config/ktuned``
=============  ====================  ============================================

This module imports nothing of ktuned, because a worker needs it before it imports anything else.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

NO_HOME_HINT = "set KTUNED_HOME, or HOME, to a directory of yours"


class NoHomeDirectory(Exception):
    """The user has no home directory, and no variable names another place."""


class UserDirectories(NamedTuple):
    """Where ktuned keeps state (store, spool, log), what can be made again, and ``config.toml``."""

    state: Path
    cache: Path
    config: Path


def find_user_directories(environment: Mapping[str, str] | None = None) -> UserDirectories:
    """Return the directories, by ``environment`` or else the process's own variables. They may not exist yet.

    Raises:
        NoHomeDirectory: The user has none, and no variable names another place.
    """
    env = os.environ if environment is None else environment
    if chosen := env.get("KTUNED_HOME"):
        home = Path(_find_home(env), chosen[2:]) if chosen.startswith("~/") else Path(chosen).absolute()
        return UserDirectories(home, home / "cache", home)

    def locate(variable: str, default: str) -> Path:
        base = env.get(variable, "")
        # XDG: a relative path is to be ignored.
        return Path(base if os.path.isabs(base) else Path(_find_home(env), default)) / "ktuned"

    return UserDirectories(
        locate("XDG_STATE_HOME", ".local/state"),
        locate("XDG_CACHE_HOME", ".cache"),
        locate("XDG_CONFIG_HOME", ".config"),
    )


def _find_home(env: Mapping[str, str]) -> str:
    found = env.get("HOME", "")
    if not os.path.isabs(found):
        try:
            found = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise NoHomeDirectory(
                f"there is no home directory: HOME is not set, and the user {os.getuid()} has no entry in /etc/passwd"
            ) from None
    return found
