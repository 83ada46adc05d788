"""The daemon's directories: private, and held by one daemon at a time.

Two daemons on one store would each know only part of its state, so a lock on a file decides which one runs. The
directories are private because whoever can write there can run code as the user: artifacts are code, and the store says
which are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ktuned.ipc import Trust, Untrusted
from ktuned.model import StoreError
from ktuned.serve import LOCK_NAME, LockHeld, hold_lock

PRIVATE_UMASK = 0o077
"""Files of the daemon and its workers are readable only by their user."""

_PRIVATE_DIRECTORY = 0o700


@contextmanager
def hold_directories(state: Path, cache: Path, socket: str) -> Iterator[None]:
    """Make the directories, and hold the lock of the state directory during the block.

    Waits for a daemon that still ends; ``socket`` is the path that this daemon is going to serve.

    Raises:
        StoreError: the directories cannot be used, another user could replace files in them, or another daemon holds
            them.
    """
    with ExitStack() as held:
        try:
            for directory in (state, cache):
                directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
                Trust().check_directory(str(directory))
            held.enter_context(hold_lock(state / LOCK_NAME, socket))
        except OSError as error:
            raise StoreError(
                f"{state} cannot be used: {error.strerror}",
                hint="make it writable, free some space on its disk, or set KTUNED_HOME to another directory",
            ) from error
        except Untrusted as error:
            raise StoreError(
                f"{state} cannot be used: {error.message}",
                hint="close it to others, or set KTUNED_HOME to a directory of yours",
            ) from error
        except LockHeld as error:
            raise StoreError(
                f"a daemon (pid {error.pid}) already keeps its state in {state}",
                hint=f"`kill {error.pid}` stops it, wherever its socket is; or set KTUNED_HOME to another directory",
            ) from error
        yield
