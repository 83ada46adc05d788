"""The locks of a daemon: one daemon for each state directory, and one for each socket's directory.

Two commands may start a daemon at the same moment, and a command may start one while the last daemon still ends. So a
process that finds a lock held waits until the holder serves its socket (then the process is not needed, and
:class:`LockHeld` is raised) or ends (then the process is the daemon). A daemon removes its socket before it ends
anything else, so a socket that is served belongs to a daemon that stays.

The lock of the state directory is a file, which nothing removes and which names its holder. The lock of a socket's
directory is on the directory itself: whoever removes the directory also removes the socket, so no socket is ever served
without its lock.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ktuned.model import FrozenStruct
from ktuned_client import paths

LOCK_NAME = "lock"
"""The file in the state directory."""

PATIENCE_S = 10.0
"""How long a process waits for a holder that neither serves nor ends, in seconds. A daemon ends within a few."""

_INTERVAL_S = 0.02
_CONNECT_S = 1.0
_MAX_BYTES = 4096


class Holder(FrozenStruct):
    """The process that holds a lock.

    Attributes:
        pid: Its process id.
        started: When it started, in clock ticks after the machine's boot; with the pid, this identifies the process.
        socket: The path of its socket.
    """

    pid: int
    started: int
    socket: str


class LockHeld(Exception):
    """Another process holds the lock; ``pid`` is its id if it serves or has written its id."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


@contextmanager
def hold_lock(path: str | os.PathLike[str], socket: str) -> Iterator[None]:
    """Hold the lock of a directory, or of a file that is made if it does not exist, within the block.

    Waits while another process holds the lock but does not serve its socket.

    Args:
        path: The directory or the file. A file gets the :class:`Holder`.
        socket: The path of the socket that this process is going to serve.

    Raises:
        LockHeld: another process holds it, and serves its socket or has not ended within :data:`PATIENCE_S`.
        OSError: the file cannot be made, locked or written.
    """
    is_directory = os.path.isdir(path)
    flags = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + PATIENCE_S
        while not _try_lock(descriptor):
            holder = None if is_directory else _read_holder(descriptor)
            server = paths.find_server(socket if holder is None else holder.socket, _CONNECT_S)
            if server is not None or time.monotonic() > end:
                raise LockHeld(server if holder is None else holder.pid)
            # No event says that another process serves.
            select.select([], [], [], _INTERVAL_S)
        if not is_directory:
            pid = os.getpid()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(Holder(pid, _read_start(pid), socket)) + b"\n", 0)
        yield
    finally:
        os.close(descriptor)


def find_holder(state: Path) -> Holder | None:
    """Return the process that holds the lock of a state directory, if it still runs."""
    try:
        descriptor = os.open(state / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        holder = _read_holder(descriptor)
        return holder if holder is not None and _read_start(holder.pid) == holder.started else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(descriptor: int) -> Holder | None:
    """Return what the lock's file says; ``None`` while its holder has not written it yet."""
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_BYTES, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _read_start(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stream:
        # Field 22 in proc(5), which counts from 1; the words after the command's name begin with field 3.
        return int(stream.read().rpartition(b")")[2].split()[19])
