"""Generation table: a file of 64-bit words that the daemon writes and clients map to validate kept answers.

::

    word 0        the bytes ``ktunedG`` and the layout's version
    word 1        the number of words
    word 2        the epoch of the daemon that wrote last
    words 3 … 7   zero
    words 8 …     one generation per slot; a kernel's slot is 8 + CRC-32 of its full name, modulo the slots

A daemon adds one to a kernel's slot after each commit that may change its answers, and one to all slots when it
starts. Kernels that share a slot cause each other unnecessary requests, never wrong answers. Words are in the machine's
byte order and on 8-byte boundaries: both sides load and store them by one move of 8 bytes, which is atomic on x86-64
and on AArch64, so a reader sees the generation before or after a change, nothing in between.
"""

from __future__ import annotations

import mmap
import os
import stat
from functools import lru_cache
from typing import Final
from zlib import crc32

MAGIC: Final = b"ktunedG\x01"
"""The first bytes of the file; other versions are not read."""

WORDS: Final = 4096
"""32 KiB: eight pages, in which a few hundred kernels rarely share a slot."""

COUNT_WORD: Final = 1
EPOCH_WORD: Final = 2
FIRST_SLOT: Final = 8

MAX_NAME_CHARACTERS: Final = 256
MAX_NAMES: Final = 1024
"""Limit of cached slots: computing one takes longer than every other step of a lookup."""


def slot_of(kernel: str) -> int:
    """Return the index of a kernel's word, by its full name."""
    # A peer may send invented names of any size, which must not fill the cache.
    return _remembered_slot_of(kernel) if len(kernel) <= MAX_NAME_CHARACTERS else _slot_of(kernel)


def _slot_of(kernel: str) -> int:
    return FIRST_SLOT + crc32(kernel.encode()) % (WORDS - FIRST_SLOT)


_remembered_slot_of = lru_cache(MAX_NAMES)(_slot_of)

NOTHING: Final = memoryview(bytes(8 * WORDS)).cast("Q")
"""The words of a table that never changes, for answers that hold for good."""


class Table:
    """A daemon's table, mapped for reading, until :meth:`close`; ``words`` are its words.

    Raises:
        OSError: it cannot be opened, or belongs to another user.
        ValueError: it is not a table of this layout.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != 8 * WORDS:
                raise ValueError(f"{path} is not a generation table of this user")
            self._map = mmap.mmap(descriptor, 8 * WORDS, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.identity = (found.st_dev, found.st_ino)
        self._bytes = memoryview(self._map)
        self.words = self._bytes.cast("Q")
        if bytes(self._bytes[: len(MAGIC)]) != MAGIC or self.words[COUNT_WORD] != WORDS:
            self.close()
            raise ValueError(f"{path} is a generation table of another version")

    def close(self) -> None:
        """Unmap it; reading ``words`` afterwards raises ``ValueError``."""
        self.words.release()
        self._bytes.release()
        self._map.close()
