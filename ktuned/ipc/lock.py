"""A lock file: held by one process at a time, which it names. The kernel releases it with the process, in any case."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class LockHeld(Exception):
    """Another process holds the lock; ``holder`` is its id, as it has written it."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def hold_lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be, for the length of the block.

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
