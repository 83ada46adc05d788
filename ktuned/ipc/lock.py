"""A lock file: held by one process at a time, whose id it contains. Linux releases it whenever the process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class LockHeld(Exception):
    """Another process holds the lock; ``holder`` is the id that it has written into the file."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def hold_lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a file within the block. The file is made if it does not exist.

    Raises:
        LockHeld: another process holds it.
        OSError: the file cannot be made, locked or written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeld(os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
