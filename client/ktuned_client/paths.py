"""The path of the daemon's socket, and the checks with which each side decides whether to trust it.

A socket is trusted if its directory is a real directory of this user with mode 0700, the socket belongs to this user,
and so does the process at the other end (``SO_PEERCRED``).
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Mapping
from typing import Final

MAX_PATH_BYTES: Final = 107
"""The longest path of a Unix socket: ``sun_path`` has 108 bytes, one of them the terminating zero (unix(7))."""

DIRECTORY_MODE: Final = 0o700
SOCKET_MODE: Final = 0o600

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid


class UntrustedSocket(OSError):
    """A socket's path cannot be used or must not be trusted; ``hint`` is the remedy."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def socket_path(environ: Mapping[str, str] | None = None) -> str:
    """Return the path of the daemon's socket.

    It is ``$KTUNED_SOCKET`` if that is set; else ``$XDG_RUNTIME_DIR/ktuned/ktuned.sock`` if that variable is set; else
    ``/tmp/ktuned-UID/ktuned.sock``.
    """
    environ = os.environ if environ is None else environ
    if chosen := environ.get("KTUNED_SOCKET"):
        return os.path.abspath(chosen)
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(runtime, "ktuned", "ktuned.sock")
    # Not $TMPDIR: daemon and applications must agree, even if their environments differ.
    return f"/tmp/ktuned-{os.geteuid()}/ktuned.sock"


def check_length(path: str) -> None:
    """Check that a path fits into a socket's address.

    Raises:
        UntrustedSocket: it is longer than :data:`MAX_PATH_BYTES`.
    """
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise UntrustedSocket(
            f"the socket's path has {length} bytes, and {MAX_PATH_BYTES} are allowed: {path}",
            hint="set KTUNED_SOCKET to a shorter path",
        )


def make_directory(directory: str) -> None:
    """Make the socket's directory, closed to others, or check the existing one.

    Raises:
        UntrustedSocket: it belongs to another user, is open to others, or is not a directory.
        OSError: it cannot be made.
    """
    os.makedirs(os.path.dirname(directory) or "/", exist_ok=True)
    try:
        os.mkdir(directory, DIRECTORY_MODE)
    except FileExistsError:
        check_directory(directory)
    else:
        os.chmod(directory, DIRECTORY_MODE)  # the umask may have removed our own access


def check_directory(directory: str) -> None:
    """Check that a path is a real directory, belongs to this user, and is closed to others.

    Raises:
        UntrustedSocket: one of these is not so.
        FileNotFoundError: the path does not exist.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise UntrustedSocket(f"{directory} is not a real directory (a link or a file)", hint="remove it")
    if status.st_uid != os.geteuid():
        raise UntrustedSocket(
            f"the socket's directory {directory} belongs to uid {status.st_uid}, not to you ({os.geteuid()})",
            hint="set KTUNED_SOCKET to a path in a directory of yours",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UntrustedSocket(
            f"the socket's directory {directory} is open to others (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"chmod 700 {directory}",
        )


def check_socket(path: str) -> None:
    """Check that a path is a socket of this user, in a private directory.

    Raises:
        UntrustedSocket: one of these is not so.
        FileNotFoundError: the path does not exist.
    """
    check_length(path)
    check_directory(os.path.dirname(path))
    status = os.lstat(path)
    if not stat.S_ISSOCK(status.st_mode):
        raise UntrustedSocket(f"{path} is not a socket", hint="remove it")
    if status.st_uid != os.geteuid():
        raise UntrustedSocket(f"the socket {path} belongs to uid {status.st_uid}, not to you ({os.geteuid()})")


def check_peer(connection: socket.socket) -> int:
    """Check that the process at the other end runs as this user, and return its pid.

    Raises:
        UntrustedSocket: it runs as another user.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        raise UntrustedSocket(f"the process at the other end (pid {pid}) runs as uid {uid}, not as you")
    return int(pid)


def connect(path: str, timeout_s: float) -> socket.socket:
    """Connect to the daemon at ``path``, with all checks, and return the socket with this timeout.

    Raises:
        UntrustedSocket: a check failed.
        OSError: no process listens there, or its queue is full.
    """
    check_socket(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
        check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def find_server(path: str, timeout_s: float) -> int | None:
    """Return the id of the process of this user that listens at ``path``; ``None`` if no process does."""
    try:
        with connect(path, timeout_s) as connection:
            return check_peer(connection)
    except OSError:
        return None
