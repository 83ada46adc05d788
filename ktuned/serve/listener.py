"""The listening socket, bound here or handed over. A lock, and not the socket's file, ensures one daemon per path."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio
import structlog

from ktuned.ipc import LockHeld, hold_lock
from ktuned.model import KtunedError
from ktuned_client import paths

LOOK_S: Final = 2.0
"""Interval at which it is checked that the socket's file is still there."""

CONNECT_S: Final = 1.0
"""Deadline for finding out whether somebody listens at a socket's file."""

_log = structlog.get_logger()


class CannotListen(KtunedError):
    """The daemon cannot listen: another daemon has the socket, or its path cannot be used."""

    code = "cannot_listen"


@contextlib.contextmanager
def bind_socket(path: str) -> Iterator[socket.socket]:
    """Hold the lock beside ``path`` and yield a listening socket there; remove the socket's file at the end.

    Raises:
        CannotListen: another daemon holds the lock, or the path or its directory cannot be used.
    """
    try:
        paths.check_length(path)
        paths.make_directory(os.path.dirname(path))
    except paths.UntrustedSocket as error:
        raise CannotListen(error.message, hint=error.hint) from error
    except OSError as error:
        raise _cannot_listen(path, error) from error
    with _hold_lock_beside(path):
        try:
            listening = _listen_at(path)
        except OSError as error:
            raise _cannot_listen(path, error) from error
        try:
            with listening:
                yield listening
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


async def keep_reachable(path: str, listen: Callable[[socket.socket], Awaitable[None]]) -> None:
    """Make the socket and the lock beside it again whenever their files are gone; runs until cancelled.

    Each new socket is passed to ``listen``. Cleaners such as systemd's for ``/tmp`` remove old files, and a daemon's
    may be old. Without the socket no client could reach the daemon; without the lock another daemon would not see that
    the path is served.
    """
    with contextlib.ExitStack() as locks:
        while True:
            await anyio.sleep(LOOK_S)
            try:
                if not os.path.lexists(_lock_path(path)):
                    paths.make_directory(os.path.dirname(path))
                    locks.enter_context(_hold_lock_beside(path))
                # The file may also be another daemon's; then it stays.
                if os.path.lexists(path):
                    continue
                listening = _listen_at(path)
            except (OSError, CannotListen) as error:
                _log.error("socket_lost", socket=path, reason=str(error))
                continue
            await listen(listening)
            _log.warning("socket_bound_again", socket=path)


@contextlib.contextmanager
def inherit_socket(descriptor: int) -> Iterator[socket.socket]:
    """Yield a listening socket that a service manager made, and hold the lock beside its file.

    The file belongs to the manager, so it is neither bound here nor removed at the end. Clients that connect while no
    daemon runs wait in the manager's queue.

    Raises:
        CannotListen: another daemon holds the lock, or other users can use the socket.
    """
    with socket.socket(fileno=descriptor) as listening:
        path = listening.getsockname()
        if not isinstance(path, str) or not os.path.isabs(path):
            raise CannotListen(
                "the socket that was handed over has no file, so nothing keeps others away from it",
                hint="ktuned.socket needs ListenStream= with an absolute path",
            )
        try:
            paths.check_socket(path)
            os.chmod(path, paths.SOCKET_MODE)
        except OSError as error:
            raise _cannot_listen(path, error) from error
        with _hold_lock_beside(path):
            yield listening


@contextlib.contextmanager
def _hold_lock_beside(path: str) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold_lock(_lock_path(path)))
        except LockHeld as error:
            raise CannotListen(
                f"a daemon (pid {error.holder}) already serves {path}", hint="stop it with `ktuned stop`"
            ) from error
        except OSError as error:
            raise _cannot_listen(path, error) from error
        yield


def _lock_path(path: str) -> str:
    return os.path.join(os.path.dirname(path), paths.LOCK_NAME)


def _listen_at(path: str) -> socket.socket:
    # No other process holds the lock, so an existing socket is a leftover, unless the lock's file was removed.
    _refuse_served_socket(path)
    with contextlib.suppress(FileNotFoundError):
        paths.check_socket(path)
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, paths.SOCKET_MODE)
    except BaseException:
        listening.close()
        raise
    return listening


def _refuse_served_socket(path: str) -> None:
    try:
        with paths.connect(path, CONNECT_S) as connection:
            pid = paths.check_peer(connection)
    except OSError:
        return
    raise CannotListen(f"a daemon (pid {pid}) already serves {path}", hint="stop it with `ktuned stop`")


def _cannot_listen(path: str, error: OSError) -> CannotListen:
    if isinstance(error, paths.UntrustedSocket):
        return CannotListen(error.message, hint=error.hint)
    return CannotListen(
        f"cannot listen at {path}: {error.strerror or error}",
        hint="set KTUNED_SOCKET to a path in a directory of yours",
    )
