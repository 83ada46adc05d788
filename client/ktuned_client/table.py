"""The clients' side of the table of winners: a file that the daemon alone writes and clients map, to answer lookups
without a system call. :mod:`ktuned.lookup.winner_table`, which writes it, explains its layout and its rules.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from functools import lru_cache
from typing import Final
from zlib import crc32

from ktuned_client import paths

MAGIC: Final = b"ktunedW\x01"
"""The first bytes of the file; a file of another version is not read."""

TABLE_NAME: Final = "ktuned.winners"
USES_NAME: Final = "ktuned.uses"
"""Files beside the socket, in its private directory. They stay when the daemon ends, because clients have mapped them.
"""

WORDS: Final = 4096
"""Words before the entries: eight pages, in which a few hundred kernels rarely share a slot."""

SIZE_WORD: Final = 1
EPOCH_WORD: Final = 2
WATCHED_WORD: Final = 3
ENTRIES_WORD: Final = 4
REPLACED_WORD: Final = 5
FIRST_SLOT: Final = 8

ENTRY_WORDS: Final = 128
"""1 KiB: a key, a config and two paths take some 600 bytes. An answer that does not fit must be requested."""

ERA_SHIFT: Final = 32
"""The upper half of a generation is its era. Entries of another era were revoked."""

HEAD_WORDS: Final = 4
"""Words at the start of an entry: sequence; tag and checksum; slot and lengths; generation."""

MAX_CONTENT_BYTES: Final = 8 * (ENTRY_WORDS - HEAD_WORDS)
"""Limit for a key and its payload together."""

PROBES: Final = 16
"""Number of neighbouring entries that are searched for a key. If all are taken by other keys, the daemon makes a larger
file."""

MAX_ENTRIES: Final = 16_384
"""Most entries (16 MiB of memory); beyond that, entries of the least recently used kernels are replaced."""

MAX_NAME_CHARACTERS: Final = 256
MAX_NAMES: Final = 1024
"""Most cached slots. They are cached because computing a slot takes longer than any other step of a lookup."""


_HEAD: Final = struct.Struct("=3Q")
"""The first words of an entry: sequence; tag and checksum; slot and lengths."""

_SLOT: Final = struct.Struct("=2Q")
"""The first words of an entry's copy, which begins after the checksum: slot and lengths; generation."""


def find_slot(kernel: str) -> int:
    """Return a kernel's slot (the index of the word with its generation), from its full name."""
    # Long names are not cached, because a peer may send invented names of any length.
    return _find_cached_slot(kernel) if len(kernel) <= MAX_NAME_CHARACTERS else _compute_slot(kernel)


def _compute_slot(kernel: str) -> int:
    return FIRST_SLOT + crc32(kernel.encode()) % (WORDS - FIRST_SLOT)


_find_cached_slot = lru_cache(MAX_NAMES)(_compute_slot)


def make_kernel_key(name: str, directory: str | None) -> bytes:
    """Return the key of a kernel's entry, from its full name, or from a short name and the directory it is used in.

    A short name without a directory is the key of the only kernel that has this short name.
    """
    return b"K" + (name if directory is None or ":" in name else f"{name}\0{directory}").encode()


def make_winner_prefix(kernel: str, model: str, objective: str) -> bytes:
    """Return the key of a winner's entry up to the key problem, which is MessagePack of a map with sorted keys."""
    return b"W" + f"{kernel}\0{model}\0{objective}\0".encode()


class Table:
    """A daemon's table, mapped for reading until :meth:`close`; ``words`` are its 64-bit words.

    Raises:
        OSError: it cannot be opened, or its directory belongs to another user.
        ValueError: it is not a table of this layout, or belongs to another user.
    """

    def __init__(self, path: str) -> None:
        paths.check_directory(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or size < 8 * WORDS or size % 8:
                raise ValueError(f"{path} is not a table of winners of this user")
            self._map = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self._bytes = memoryview(self._map)
        self.words = self._bytes.cast("Q")
        entries = self.words[ENTRIES_WORD]
        is_whole = self.words[SIZE_WORD] == size == 8 * (WORDS + ENTRY_WORDS * entries)
        if bytes(self._bytes[: len(MAGIC)]) != MAGIC or not is_whole or entries & (entries - 1):
            self.close()
            raise ValueError(f"{path} is a table of winners of another version")
        self._last = entries - 1

    @property
    def is_replaced(self) -> bool:
        """True if the daemon has replaced this file by another."""
        return self.words[REPLACED_WORD] != 0

    def find(self, key: bytes) -> tuple[int, int, bytes] | None:
        """Return the slot, generation and payload of the entry with this key, or ``None`` if there is none.

        If the generation is not the slot's present one, the entry is only a last resort.
        """
        if self._last < 0:
            return None
        words, mapped, last, tag = self.words, self._map, self._last, crc32(key)
        for number in range(tag, tag + PROBES):
            at = WORDS + (number & last) * ENTRY_WORDS
            start = 8 * at
            sequence, tag_and_checksum, lengths = _HEAD.unpack_from(mapped, start)
            if not sequence:
                return None
            if tag_and_checksum >> 32 != tag:
                continue
            key_end = 16 + (lengths >> 16 & 0xFFFF)
            # The lengths in a half-written entry may be wrong, but are below 64 KiB; slicing stops at the file's end.
            copy = mapped[start + 16 : start + 16 + key_end + (lengths & 0xFFFF)]
            if sequence & 1 or words[at] != sequence or crc32(copy) != tag_and_checksum & 0xFFFFFFFF:
                continue
            slot_and_lengths, generation = _SLOT.unpack_from(copy)
            slot = slot_and_lengths >> 32
            is_here = copy[16:key_end] == key and FIRST_SLOT <= slot < WORDS
            if is_here and not (words[slot] ^ generation) >> ERA_SHIFT:
                return slot, generation, copy[key_end:]
        return None

    def close(self) -> None:
        """Unmap the table; reading ``words`` afterwards raises ``ValueError``."""
        self.words.release()
        self._bytes.release()
        self._map.close()
