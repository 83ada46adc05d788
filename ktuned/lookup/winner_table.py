"""The daemon's side of the table of winners: its one writer (:mod:`ktuned_client.table` has the layout and the rules).

Each daemon begins with an empty file of its own, so it never has to trust or repair what another one left half written;
it renames the file into place and then ends the one before. Nothing here waits, and no change leaves a state in which a
reader could take something for an answer that is none: see the order of the steps in
:meth:`WinnerTable.bump_generation`, :meth:`WinnerTable.publish_entry` and :meth:`WinnerTable._grow_table`.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Final
from zlib import crc32

import structlog

from ktuned_client import paths
from ktuned_client.table import (
    ENTRIES_WORD,
    ENTRY_WORDS,
    EPOCH_WORD,
    FIRST_SLOT,
    MAGIC,
    MAX_CONTENT_BYTES,
    MAX_ENTRIES,
    PROBES,
    REPLACED_WORD,
    SIZE_WORD,
    TABLE_NAME,
    USES_NAME,
    WATCHED_WORD,
    WORDS,
    slot_of,
)

FIRST_ENTRIES: Final = 256
"""A new file has 288 KiB; twice as many entries follow whenever one finds no place."""

WATCHED_S: Final = 10.0
"""Time for which fresh answers stay fresh without a sign of the daemon: it may be busy for some seconds."""

CONFIRM_EVERY_S: Final = 2.0
"""Interval of the daemon's signs: several fit into :data:`WATCHED_S`, and each wakes it for some microseconds."""

_HEAD: Final = struct.Struct("=QQ")
_GENERATIONS: Final = slice(8 * FIRST_SLOT, 8 * WORDS)

_log = structlog.get_logger()


class WinnerTable:
    """Publishes winners to clients in ``directory``, and announces what changes; ``path`` is ``None`` without a file.

    Without a file generations count nevertheless, and nothing is published.
    """

    def __init__(self, directory: str, *, epoch: int, max_entries: int = MAX_ENTRIES) -> None:
        self.path: str | None = os.path.join(directory, TABLE_NAME)
        self._epoch = epoch
        self._max_entries = max_entries
        self._remove_unfinished()
        before = _open_table(self.path)
        self._map, has_file = self._make_table(FIRST_ENTRIES)
        if not has_file:
            self.path = None
        self._open_views()
        if before is None:
            # No two tables have a generation in common that was not copied.
            start = secrets.randbits(62)
            for slot in range(FIRST_SLOT, WORDS):
                self._words[slot] = start
        else:
            self._bytes[_GENERATIONS] = before[_GENERATIONS]
            self.bump_all_generations()
        self.confirm_watch()
        # Killed between these two, this daemon leaves a table in which nothing holds; the other way round, one without
        # a daemon would go on to confirm answers.
        if before is not None:
            _end_table(before)
        if self.path is not None:
            os.rename(self._staged, self.path)
        self._uses = _make_uses(os.path.join(directory, USES_NAME))

    def generation(self, kernel: str) -> int:
        """Return a kernel's generation, by its full name."""
        return self._words[slot_of(kernel)]

    def bump_generation(self, kernel: str) -> None:
        """Announce that the answers for a kernel may have changed; to be called after they have.

        From here on no entry of the kernel holds, until it is published again.
        """
        self._increment_word(slot_of(kernel))

    def bump_all_generations(self) -> None:
        """Announce that any answer may have changed."""
        for slot in range(FIRST_SLOT, WORDS):
            self._increment_word(slot)

    def confirm_watch(self) -> None:
        """Say that this daemon watches the files behind fresh answers, for a while from now on."""
        self._words[WATCHED_WORD] = clock_gettime_ns(CLOCK_MONOTONIC) + int(WATCHED_S * 1e9)

    def publish_entry(self, kernel: str, key: bytes, payload: bytes) -> bool:
        """Publish an entry under a kernel's present generation; return whether there was room for it."""
        if self.path is None or len(key) + len(payload) > MAX_CONTENT_BYTES:
            return False
        slot = slot_of(kernel)
        at = self._find_place(key)
        while at is None and self._grow_table():
            at = self._find_place(key)
        if at is None:
            # The largest table is full here: what was published longest ago is not known, so any may go.
            at = self._entry_offset(crc32(key))
        self._write_entry(at, slot, key, payload)
        return True

    def holds_entry(self, kernel: str, key: bytes, payload: bytes) -> bool:
        """Return whether this very entry is published."""
        for at in self._probe_offsets(key) if self.path is not None else ():
            if self._is_of(at, key):
                _, _, content = self._read_entry(at)
                return self._words[at + 3] == self.generation(kernel) and content == key + payload
        return False

    def used_since(self, kernels: Iterable[str], since_s: float) -> list[str]:
        """Return the kernels that clients have looked up in the table since a time of ``monotonic``."""
        if self._uses is None:
            return []
        # A client notes until when the daemon was to be there when it looked.
        uses, earliest, latest = self._uses, int((since_s + WATCHED_S) * 1e9), self._words[WATCHED_WORD]
        return [kernel for kernel in kernels if earliest < uses[slot_of(kernel)] <= latest]

    def close(self) -> None:
        """Unmap the files, which stay."""
        self._close_views()
        if self._uses is not None:
            self._uses.release()
            self._uses = None

    def _open_views(self) -> None:
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")

    def _close_views(self) -> None:
        self._words.release()
        self._bytes.release()
        self._map.close()

    def _increment_word(self, slot: int) -> None:
        self._words[slot] = (self._words[slot] + 1) % 2**64

    # Entries.

    def _entry_offset(self, number: int) -> int:
        return WORDS + (number & (self._words[ENTRIES_WORD] - 1)) * ENTRY_WORDS

    def _probe_offsets(self, key: bytes) -> Iterator[int]:
        tag = crc32(key)
        return (self._entry_offset(number) for number in range(tag, tag + PROBES))

    def _find_place(self, key: bytes) -> int | None:
        """Return where a key's entry is, or may be written: in its own place, an unused one, or one that ended."""
        free = None
        for at in self._probe_offsets(key):
            if not self._words[at]:
                return at if free is None else free
            if self._is_of(at, key):
                return at
            if free is None and self._has_ended(at):
                free = at
        return free

    def _is_of(self, at: int, key: bytes) -> bool:
        if self._words[at + 1] >> 32 != crc32(key):
            return False
        _, key_bytes, content = self._read_entry(at)
        return content[:key_bytes] == key

    def _has_ended(self, at: int) -> bool:
        return self._words[self._words[at + 2] >> 32] != self._words[at + 3]

    def _read_entry(self, at: int) -> tuple[int, int, bytes]:
        """Return an entry's slot, the length of its key, and its key and payload."""
        lengths = self._words[at + 2]
        key_bytes, payload_bytes = lengths >> 16 & 0xFFFF, lengths & 0xFFFF
        start = 8 * at + 32
        return lengths >> 32, key_bytes, bytes(self._bytes[start : start + key_bytes + payload_bytes])

    def _write_entry(self, at: int, slot: int, key: bytes, payload: bytes) -> None:
        lengths = slot << 32 | len(key) << 16 | len(payload)
        rest = _HEAD.pack(lengths, self._words[slot]) + key + payload
        sequence = self._words[at]
        # Odd: no reader takes the entry from here on, nor ever again if this process is killed now.
        self._words[at] = sequence | 1
        self._words[at + 1] = crc32(key) << 32 | crc32(rest)
        self._bytes[8 * at + 16 : 8 * at + 16 + len(rest)] = rest
        self._words[at] = (sequence | 1) + 1

    # The file.

    def _make_table(self, entries: int) -> tuple[mmap.mmap, bool]:
        """Return a new table without entries, and whether it is in a file, which is not in place yet."""
        size = 8 * (WORDS + entries * ENTRY_WORDS)
        mapped = None if self.path is None else _map_new_file(self._staged, size)
        has_file = mapped is not None
        if mapped is None:
            entries, size = 0, 8 * WORDS
            mapped = mmap.mmap(-1, size)
        with memoryview(mapped) as raw, raw.cast("Q") as words:
            words[SIZE_WORD], words[EPOCH_WORD], words[ENTRIES_WORD] = size, self._epoch, entries
            raw[: len(MAGIC)] = MAGIC
        return mapped, has_file

    @property
    def _staged(self) -> str:
        return f"{self.path}.{os.getpid()}"

    def _grow_table(self) -> bool:
        """Replace the file by one of twice the entries; return whether that was possible."""
        entries = self._words[ENTRIES_WORD]
        if 2 * entries > self._max_entries:
            return False
        larger, has_file = self._make_table(2 * entries)
        if not has_file:
            larger.close()
            return False
        before, before_bytes, before_words = self._map, self._bytes, self._words
        self._map = larger
        self._open_views()
        self._bytes[_GENERATIONS] = before_bytes[_GENERATIONS]
        self._words[WATCHED_WORD] = before_words[WATCHED_WORD]
        for at in range(WORDS, WORDS + entries * ENTRY_WORDS, ENTRY_WORDS):
            if before_words[at] and before_words[before_words[at + 2] >> 32] == before_words[at + 3]:
                copied = bytes(before_bytes[8 * at : 8 * (at + ENTRY_WORDS)])
                place = next((to for to in self._tag_probed(before_words[at + 1] >> 32) if not self._words[to]), None)
                if place is not None:
                    self._bytes[8 * place : 8 * (place + ENTRY_WORDS)] = copied
        before_words.release()
        before_bytes.release()
        # In this order, as at the start: what a reader finds until the file is in place is a table without answers.
        _end_table(before)
        assert self.path is not None
        os.rename(self._staged, self.path)
        return True

    def _tag_probed(self, tag: int) -> Iterator[int]:
        return (self._entry_offset(number) for number in range(tag, tag + PROBES))

    def _remove_unfinished(self) -> None:
        """Remove what a daemon left that was killed before its file was in place."""
        assert self.path is not None
        directory, name = os.path.split(self.path)
        with suppress(OSError):
            for entry in os.scandir(directory):
                if entry.name.startswith(f"{name}."):
                    os.unlink(entry.path)


def _map_new_file(path: str, size: int) -> mmap.mmap | None:
    """Map a new file; ``None`` where there is no room for one."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, paths.SOCKET_MODE)
    except OSError as error:
        _log.warning("no_winner_table", path=path, reason=str(error))
        return None
    try:
        # Space is allocated now: on a full disk, a write to a sparse file would kill the daemon, and a read a client.
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError as error:
        _log.warning("no_winner_table", path=path, reason=str(error))
        os.unlink(path)
        return None
    finally:
        os.close(descriptor)


def _open_table(path: str) -> mmap.mmap | None:
    """Map the table that the last daemon left, if it is one of this version."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        # A write to a page that the disk has no room for would kill this process.
        if not is_ours or found.st_size < 8 * WORDS or found.st_blocks * 512 < 8 * WORDS:
            return None
        mapped = mmap.mmap(descriptor, 8 * WORDS)
    finally:
        os.close(descriptor)
    if mapped[: len(MAGIC)] != MAGIC:
        mapped.close()
        return None
    return mapped


def _end_table(mapped: mmap.mmap) -> None:
    """End all that holds in a table, and send its readers to the one that takes its place."""
    with memoryview(mapped) as raw, raw.cast("Q") as words:
        words[REPLACED_WORD] = 1
        for slot in range(FIRST_SLOT, WORDS):
            # None that this table has had or will have.
            words[slot] ^= 1 << 63
    mapped.close()


def _make_uses(path: str) -> memoryview | None:
    """Map the file in which clients note when they last looked a kernel up, by its slot; nothing else depends on it."""
    size = 8 * WORDS
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, paths.SOCKET_MODE)
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
            return memoryview(mmap.mmap(descriptor, size)).cast("Q")
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("no_uses_of_winners", path=path, reason=str(error))
        return None
