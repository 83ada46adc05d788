"""The listening socket, bound here or handed over, in a directory whose lock the daemon holds."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator

import anyio
import structlog

from ktuned.model import KtunedError
from ktuned.serve.lock import LockHeld, hold_lock
from ktuned_client import paths

LOOK_S = 2.0
"""Interval of the checks that the socket's directory and file still exist."""

CONNECT_S = 1.0
"""Deadline for finding out which process listens at a socket."""

_log = structlog.get_logger()


class CannotListen(KtunedError):
    """The daemon cannot listen: another daemon has the socket, or its path cannot be used."""

    code = "cannot_listen"


class PathServed(CannotListen):
    """Another daemon, with the id ``pid`` if that is known, serves a socket's path."""

    def __init__(self, path: str, pid: int | None) -> None:
        who = "a daemon that does not answer holds" if pid is None else f"a daemon (pid {pid}) already serves"
        super().__init__(f"{who} {path}", hint="stop it with `ktuned stop`")


@contextlib.contextmanager
def bind_socket(path: str) -> Iterator[socket.socket]:
    """Hold the lock of the directory of ``path`` and yield a listening socket there; remove the socket at the end.

    Raises:
        CannotListen: another daemon serves the path, or the path or its directory cannot be used.
    """
    with _hold_directory(path):
        try:
            listening = _listen_at(path)
        except OSError as error:
            raise _cannot_listen(path, error) from error
        try:
            with listening:
                yield listening
        finally:
            remove_socket(path)


def remove_socket(path: str) -> None:
    """Remove this process's socket. A socket that another process serves stays."""
    if paths.find_server(path, CONNECT_S) in (None, os.getpid()):
        with contextlib.suppress(OSError):
            os.unlink(path)


async def keep_reachable(
    path: str,
    listen: Callable[[socket.socket], Awaitable[None]],
    restore_table: Callable[[], None],
    stopping: anyio.Event,
) -> None:
    """Make the socket, its directory and the files in it again whenever they are gone, until ``stopping`` is set.

    Cleaners such as systemd's for ``/tmp`` remove old files, and a daemon's may be old. If another daemon serves the
    path by then, this one sets ``stopping``: no client could reach it.

    Args:
        path: The socket that :func:`bind_socket` has bound.
        listen: Called with each new socket.
        restore_table: Makes the table of winners in the socket's directory again if it is gone.
        stopping: Set when the daemon is to stop.
    """
    held, bound = _identify(os.path.dirname(path)), _identify(path)
    with contextlib.ExitStack() as locks:
        while True:
            with anyio.move_on_after(LOOK_S):
                await stopping.wait()
            if stopping.is_set():
                return
            try:
                if _identify(os.path.dirname(path)) != held:
                    await anyio.to_thread.run_sync(locks.enter_context, _hold_directory(path))
                    held = _identify(os.path.dirname(path))
                if _identify(path) != bound:
                    await listen(_listen_at(path))
                    bound = _identify(path)
                    _log.warning("socket_bound_again", socket=path)
                restore_table()
            except PathServed as error:
                _log.error("socket_taken", socket=path, reason=str(error))
                stopping.set()
                return
            except (OSError, CannotListen) as error:
                _log.error("socket_lost", socket=path, reason=str(error))


@contextlib.contextmanager
def inherit_socket(descriptor: int) -> Iterator[socket.socket]:
    """Yield a listening socket that a service manager made, and hold the lock of its directory.

    The file belongs to the manager, so it is neither bound here nor removed at the end. Clients that connect while no
    daemon runs wait in the manager's queue.

    Raises:
        CannotListen: another daemon holds the lock, or other users can use the socket.
    """
    with socket.socket(fileno=descriptor) as listening:
        path = listening.getsockname()
        if not isinstance(path, str) or not os.path.isabs(path):
            raise CannotListen(
                "the socket that systemd passed has no file, so any user could connect",
                hint="ktuned.socket needs ListenStream= with an absolute path",
            )
        try:
            paths.check_socket(path)
            os.chmod(path, paths.SOCKET_MODE)
        except OSError as error:
            raise _cannot_listen(path, error) from error
        with _hold_directory(path):
            yield listening


@contextlib.contextmanager
def _hold_directory(path: str) -> Iterator[None]:
    """Make the directory of the socket at ``path`` if necessary, and hold its lock within the block."""
    with contextlib.ExitStack() as held:
        try:
            paths.check_length(path)
            paths.make_directory(os.path.dirname(path))
            held.enter_context(hold_lock(os.path.dirname(path), path))
        except LockHeld as error:
            raise PathServed(path, error.pid) from error
        except OSError as error:
            raise _cannot_listen(path, error) from error
        yield


def _listen_at(path: str) -> socket.socket:
    # This process holds the directory's lock, so only a service manager may listen there; other sockets are leftovers.
    if (server := paths.find_server(path, CONNECT_S)) not in (None, os.getpid()):
        raise PathServed(path, server)
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


def _identify(path: str) -> tuple[int, int] | None:
    """Return which file lies at a path, by device and inode; ``None`` if none does."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _cannot_listen(path: str, error: OSError) -> CannotListen:
    if isinstance(error, paths.UntrustedSocket):
        return CannotListen(error.message, hint=error.hint)
    return CannotListen(
        f"cannot listen at {path}: {error.strerror or error}",
        hint="set KTUNED_SOCKET to a path in a directory of yours",
    )
