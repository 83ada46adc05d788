"""Reading files that people name: regular files alone, which is checked before they are opened.

To open a pipe wakes its writer, or waits for one; to open a device may make it act. Neither can be undone, so the check
comes first.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularFile(OSError):
    """A path leads to something other than a regular file; ``strerror`` names it."""

    def __init__(self, path: str, mode: int) -> None:
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", path)


def open_regular_file(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a regular file for reading, without a buffer.

    Raises:
        NotRegularFile: it is something else, which is not opened.
        OSError: it cannot be opened.
    """
    _require_regular(path, os.stat(path))
    # The path may have changed since: O_NONBLOCK keeps a pipe from blocking.
    stream = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    try:
        _require_regular(path, os.fstat(stream.fileno()))
    except NotRegularFile:
        stream.close()
        raise
    return stream


def read_regular_file(path: str | os.PathLike[str], limit: int = -1) -> bytes:
    """Return the bytes of a regular file, at most ``limit`` of them if it is not negative.

    Raises:
        NotRegularFile: it is something else, which is not opened.
        OSError: it cannot be read.
    """
    with open_regular_file(path) as stream, io.BufferedReader(stream) as buffered:
        return buffered.read(limit)


def _require_regular(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularFile(os.fspath(path), found.st_mode)
