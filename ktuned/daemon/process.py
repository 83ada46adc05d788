"""The daemon's process: acquires the socket, the lock and the store, runs the parts, and ends them in order.

*Start.* Lock the state, open the socket, open the store, build the parts, start the fleet, then serve
(:mod:`ktuned.daemon.daemon`).

*End.* When the daemon has stopped, kill all workers and close the store.

*Directories.* Two daemons on one store would each know only part of its state, so a lock on a file decides which one
runs. The directories are private because whoever can write there can run code as the user: artifacts are code, and the
store says which are loaded.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.daemon.assembly import Parts, Replacements, list_watched_roots
from ktuned.daemon.daemon import Daemon
from ktuned.daemon.lifetime import AUTO_IDLE_EXIT_S
from ktuned.daemon.settings import Settings
from ktuned.daemon.systemd import Handover, Notifier
from ktuned.ipc import Trust, Untrusted
from ktuned.model import KtunedError, StoreError, find_first_error
from ktuned.serve import LOCK_NAME, LockHeld, bind_socket, hold_lock, inherit_socket
from ktuned.store import STORE_NAME, Store

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


_log = structlog.get_logger()

_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
"""uvloop halves the daemon's share of a lookup's time; without it, asyncio's own loop is used."""


_COLLECTIONS = (700, 3, 100)
"""Thresholds of the garbage collector. With many lanes at work, collecting the middle generation takes 2 ms instead of
5, and full collections, which take 20 to 40 ms, happen a third as often."""

_SWITCH_S = 0.001
"""Seconds after which the store's thread gives way to the event loop. By default a lookup may wait for 5 ms."""


def run(settings: Settings, *, starts_by_itself: bool = False, replacements: Replacements | None = None) -> int:
    """Run a daemon until it is stopped; return the exit code.

    Args:
        settings: The daemon's settings.
        starts_by_itself: Whether a command starts the daemon when it is needed. Then the daemon ends when it is idle,
            unless the settings say otherwise. The same holds if a service manager holds its socket.
        replacements: Parts and values that a test or a benchmark replaces.

    Raises:
        KtunedError: the daemon cannot start, or cannot continue; the error says what to do.
    """
    os.umask(PRIVATE_UMASK)
    gc.set_threshold(*_COLLECTIONS)
    sys.setswitchinterval(_SWITCH_S)
    if not faulthandler.is_enabled():
        # At a fatal signal, the stacks go to the log.
        faulthandler.enable()
    handover = Handover.take_from_environ(os.environ, os.getpid())
    try:
        serving = functools.partial(serve_until_stopped, replacements=replacements)
        anyio.run(serving, settings, handover, starts_by_itself, backend_options={"use_uvloop": _HAS_UVLOOP})
    except* KtunedError as group:
        raise find_first_error(group) from None
    return 0


async def serve_until_stopped(
    settings: Settings, handover: Handover, starts_by_itself: bool, *, replacements: Replacements | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or a ``shutdown`` request, or until it has been idle for long enough."""
    descriptor = handover.descriptor
    socket_of = bind_socket(settings.socket) if descriptor is None else inherit_socket(descriptor)
    idle_exit_s = settings.idle_exit_s
    if idle_exit_s is None:
        idle_exit_s = AUTO_IDLE_EXIT_S if starts_by_itself or descriptor is not None else 0.0
    with (
        Notifier(handover.notify_path, handover.watchdog_s) as notifier,
        hold_directories(settings.state, settings.cache, settings.socket),
        socket_of as listening,
    ):
        settings = msgspec.structs.replace(settings, socket=listening.getsockname())
        async with Store.open(settings.state / STORE_NAME) as store:
            # The names must be stored before anything is read by a kernel's name.
            await store.projects.save_names({root.path: root.name for root in list_watched_roots(settings, store)})
            if (interrupted := store.recovered).jobs:
                _log.warning("last_daemon_died", jobs=interrupted.jobs, trials=interrupted.trials)
            parts = Parts(settings, store, replacements)
            daemon = Daemon(parts, notifier, idle_exit_s=idle_exit_s)
            # Otherwise a full garbage collection scans all modules and the store's indexes for 20 to 60 ms, while every
            # lookup waits.
            gc.freeze()
            async with parts.fleet.run_workers():
                await daemon.run_until_stopped(listening, is_bound=descriptor is None)
