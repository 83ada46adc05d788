"""Linux's inotify (man 7 inotify): which names in which watched directories changed, and whether some were lost.

Own code, because the libraries for it hide two things that must be told: an overflow of the kernel's queue, and which
directory could not be watched any more.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from types import TracebackType
from typing import Self

_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class Mask(IntFlag):
    """The bits of an event that matter here."""

    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000


WATCHED = (
    Mask.CLOSE_WRITE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF
)
"""A file counts when its writer closes it: a half-written one would be read for nothing."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event: in which watch, what, and the name in that directory (empty for the directory itself)."""

    watch: int
    mask: Mask
    name: str


def decode(data: bytes) -> Iterator[Happening]:
    """Yield the events in what was read from inotify. No IO."""
    place = 0
    while place < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        name = os.fsdecode(data[place : place + length].rstrip(b"\0"))
        place += length
        yield Happening(watch, Mask(mask), name)


class Inotify:
    """One inotify instance, closed at the end of ``with``."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Non-blocking and close-on-exec have the values that open() has for them.
        self.descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def watch(self, directory: str) -> int:
        """Watch a directory; one that is watched keeps its number.

        Raises:
            OSError: it is no directory, or there are no more watches to be had (ENOSPC).
        """
        return self._checked(
            self._libc.inotify_add_watch(self.descriptor, os.fsencode(directory), int(WATCHED | Mask.ONLYDIR)),
            directory,
        )

    def forget(self, watch: int) -> None:
        """Stop watching; harmless when the directory is gone."""
        self._libc.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> list[Happening]:
        """Return what has happened since the last call, at once."""
        found: list[Happening] = []
        while True:
            try:
                found += decode(os.read(self.descriptor, _READ_BYTES))
            except BlockingIOError:
                return found

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)
