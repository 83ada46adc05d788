"""Table of winners: a file that the daemon alone writes and clients map, to answer lookups without a system call.

It lies beside the socket, in a file system in memory. Its layout is between the daemon and its Python client
(:mod:`ktuned_client.table` reads it). Numbers are in the machine's byte order, and a word has 64 bits::

    words 0 … 7      header: magic, size in bytes, epoch, end of the watch, number of entries (a power of two), whether
                     the file is replaced
    words 8 … 4095   one generation for each slot; a kernel's slot is 8 + CRC-32 of its full name, modulo 4,088
    from word 4096   entries of 128 words; the entry of a key is one of the sixteen from CRC-32 of the key on, modulo
                     the number of entries

    an entry         sequence; CRC-32 of the key and CRC-32 of what follows, to the payload's end, 32 bits each; slot,
                     bytes of the key and bytes of the payload (32, 16 and 16 bits); generation; key; payload

Keys and payloads are MessagePack: :mod:`ktuned.lookup.publication` makes them.

Everything rests on three rules.

**Whole or absent.** An entry's first word is its sequence: odd during a write, and a new even number after it. A reader
copies the entry, and takes the copy only if the sequence was even and is unchanged, and the copy's checksum is right.
The checksum also protects on machines that reorder loads. A daemon that is killed during a write leaves an odd
sequence, so the entry counts as absent.

**Current, or the last resort.** An entry holds while its generation equals the one in its kernel's slot. The daemon
adds one to a kernel's generation after each commit that may change the kernel's answers, and to all generations when it
starts. The same rule ends the decoded answers that a client keeps. A client asks the daemon instead of using an entry
of an earlier generation; only if the daemon does not answer in time, the entry is given as ``stale``. Answers that must
not be given at all, because they were forgotten, are *revoked*: the generation's upper half grows, and entries with
another upper half are absent. Kernels that share a slot only cause each other unnecessary requests.

**Fresh only while watched.** The header says until when (``CLOCK_MONOTONIC``) a daemon watches the files behind fresh
answers. A running daemon moves that time ahead every few seconds; once it has passed, fresh answers count as stale. A
daemon that stops ends the watch itself, so only a killed daemon's answers stay fresh until then.

A file never grows. To get a larger table, the daemon writes a new file beside the old one, renames it to the table's
name, and then marks the old file as replaced and changes all its generations, so that every reader looks for the new
file.

Each daemon begins with an empty file of its own, so it never has to trust or repair a file that another daemon left
half written. It ends the file before, and renames its own into place. Nothing here waits. At no moment can a reader
mistake anything for a valid answer: see the order of the steps in :meth:`WinnerTable.bump_generation`,
:meth:`WinnerTable.publish_entry` and :meth:`WinnerTable._replace_file`.
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
from zlib import crc32

import structlog

from ktuned_client import paths
from ktuned_client.table import (
    ENTRIES_WORD,
    ENTRY_WORDS,
    EPOCH_WORD,
    ERA_SHIFT,
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
    find_slot,
)

FIRST_ENTRIES = 256
"""Entries of a new file, which then has 288 KiB. Their number doubles whenever an entry finds no place."""

WATCHED_S = 10.0
"""How long fresh answers stay fresh after the daemon's last sign of life: it may be busy for some seconds."""

CONFIRM_EVERY_S = 2.0
"""Interval of the daemon's signs of life: several fit into :data:`WATCHED_S`, and each takes some microseconds."""

_HEAD = struct.Struct("=QQ")
_GENERATIONS = slice(8 * FIRST_SLOT, 8 * WORDS)

_log = structlog.get_logger()


class WinnerTable:
    """Publishes winners to clients in a file in ``directory``, and announces changes.

    Attributes:
        path: The file; ``None`` if it cannot be made. Then nothing is published, but generations still count.
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
            # A random start, so that two tables never have equal generations unless they were copied.
            start = _begin_era(secrets.randbits(30))
            for slot in range(FIRST_SLOT, WORDS):
                self._words[slot] = start
        else:
            self._bytes[_GENERATIONS] = before[_GENERATIONS]
            self.bump_all_generations()
        self.confirm_watch()
        # In this order: a daemon that is killed between these two steps leaves a table in which nothing is valid. In
        # the other order, clients that have the old table open would find valid answers there without any daemon.
        if before is not None:
            _end_table(before)
        self._place_file()
        self._use_times = _map_use_times(os.path.join(directory, USES_NAME))

    def generation(self, kernel: str) -> int:
        """Return a kernel's generation, by its full name."""
        return self._words[find_slot(kernel)]

    def bump_generation(self, kernel: str) -> None:
        """Announce that the answers for a kernel may have changed; call this after the change.

        From then on, the kernel's entries are only a last resort until they are published again.
        """
        self._increment_word(find_slot(kernel))

    def revoke_entries(self, kernel: str) -> None:
        """End a kernel's entries for good, also as a last resort."""
        slot = find_slot(kernel)
        self._words[slot] = _begin_era((self._words[slot] >> ERA_SHIFT) + 1)

    def bump_all_generations(self) -> None:
        """Announce that any answer may have changed."""
        for slot in range(FIRST_SLOT, WORDS):
            self._increment_word(slot)

    def confirm_watch(self) -> None:
        """Confirm that this daemon watches the files behind fresh answers; the confirmation is valid for WATCHED_S."""
        self._words[WATCHED_WORD] = clock_gettime_ns(CLOCK_MONOTONIC) + int(WATCHED_S * 1e9)

    def end_watch(self) -> None:
        """End the watch now, and every kept answer: from here on, entries are only a last resort."""
        self._words[WATCHED_WORD] = clock_gettime_ns(CLOCK_MONOTONIC)
        self.bump_all_generations()

    def publish_entry(self, kernel: str, key: bytes, payload: bytes, *, asks_first: bool = False) -> bool:
        """Publish an entry under a kernel's present generation; return whether there was room for it.

        With ``asks_first`` it gets the generation before, so that clients ask the daemon before they use it.
        """
        if self.path is None or len(key) + len(payload) > MAX_CONTENT_BYTES:
            return False
        slot = find_slot(kernel)
        at = self._find_place(key)
        while at is None and self._replace_file(2):
            at = self._find_place(key)
        if at is None:
            # The largest table is full here, so an entry of the least recently used kernel leaves.
            at = min(self._probe_offsets(key), key=lambda at: self._find_last_use(self._words[at + 2] >> 32))
            if self._find_last_use(self._words[at + 2] >> 32) > self._find_last_use(slot):
                return False
        self._write_entry(at, slot, self._words[slot] - asks_first, key, payload)
        return True

    def holds_entry(self, kernel: str, key: bytes, payload: bytes) -> bool:
        """Return whether an entry is published and valid with exactly this payload."""
        for at in self._probe_offsets(key) if self.path is not None else ():
            if self._has_key(at, key):
                _, _, content = self._read_entry(at)
                return self._words[at + 3] == self.generation(kernel) and content == key + payload
        return False

    def note_use(self, kernel: str) -> None:
        """Note that a kernel was looked up now, as clients do that find its winner in the table."""
        self._use_times[find_slot(kernel)] = self._words[WATCHED_WORD]

    def list_used_kernels(self, kernels: Iterable[str], since_s: float) -> list[str]:
        """Return the kernels that were looked up, here or in the table, since a time of ``monotonic``."""
        # A use is noted as the end of the confirmation (see confirm_watch) that was valid then.
        uses, earliest, latest = self._use_times, int((since_s + WATCHED_S) * 1e9), self._words[WATCHED_WORD]
        return [kernel for kernel in kernels if earliest < uses[find_slot(kernel)] <= latest]

    def sort_by_use(self, kernels: Iterable[str]) -> list[str]:
        """Return kernels with the most recently used first."""
        return sorted(kernels, key=lambda kernel: self._find_last_use(find_slot(kernel)), reverse=True)

    def _find_last_use(self, slot: int) -> int:
        """Return when a slot's kernels were last used; 0 is never, or a time that no client can have noted."""
        use = self._use_times[slot]
        return use if use <= self._words[WATCHED_WORD] else 0

    def close(self) -> None:
        """Unmap the files; they stay on the disk."""
        self._close_views()
        self._use_times.release()

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
        """Return where a key's entry is or may be written: its own place, an unused one, or a revoked one's."""
        free = None
        for at in self._probe_offsets(key):
            if not self._words[at]:
                return at if free is None else free
            if self._has_key(at, key):
                return at
            if free is None and self._is_revoked(self._words, at):
                free = at
        return free

    def _has_key(self, at: int, key: bytes) -> bool:
        if self._words[at + 1] >> 32 != crc32(key):
            return False
        _, key_bytes, content = self._read_entry(at)
        return content[:key_bytes] == key

    @staticmethod
    def _is_revoked(words: memoryview, at: int) -> bool:
        return bool((words[words[at + 2] >> 32] ^ words[at + 3]) >> ERA_SHIFT)

    def _read_entry(self, at: int) -> tuple[int, int, bytes]:
        """Return an entry's slot, the length of its key, and its key and payload."""
        lengths = self._words[at + 2]
        key_bytes, payload_bytes = lengths >> 16 & 0xFFFF, lengths & 0xFFFF
        start = 8 * at + 32
        return lengths >> 32, key_bytes, bytes(self._bytes[start : start + key_bytes + payload_bytes])

    def _write_entry(self, at: int, slot: int, generation: int, key: bytes, payload: bytes) -> None:
        lengths = slot << 32 | len(key) << 16 | len(payload)
        rest = _HEAD.pack(lengths, generation) + key + payload
        sequence = self._words[at]
        # With an odd sequence, readers ignore the entry from now on, and forever if this process is killed now.
        self._words[at] = sequence | 1
        self._words[at + 1] = crc32(key) << 32 | crc32(rest)
        self._bytes[8 * at + 16 : 8 * at + 16 + len(rest)] = rest
        self._words[at] = (sequence | 1) + 1

    # The file.

    def _make_table(self, entries: int) -> tuple[mmap.mmap, bool]:
        """Return a new table without entries, and whether it is in a file; the file is not yet renamed into place."""
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

    def restore_file(self) -> None:
        """Put files with the same content into place if somebody has removed the directory or the table's file."""
        if self.path is not None and _identify(self.path) != self._identity and self._replace_file(1):
            before = self._use_times
            self._use_times = _map_use_times(os.path.join(os.path.dirname(self.path), USES_NAME))
            self._use_times[:] = before
            before.release()

    def _place_file(self) -> None:
        """Rename the new file to the table's name."""
        self._identity = None
        if self.path is not None:
            os.rename(self._staged, self.path)
            self._identity = _identify(self.path)

    def _replace_file(self, factor: int) -> bool:
        """Replace the file by one with ``factor`` times as many entries; return whether that was possible."""
        entries = self._words[ENTRIES_WORD]
        if factor * entries > self._max_entries:
            return False
        larger, has_file = self._make_table(factor * entries)
        if not has_file:
            larger.close()
            return False
        before, before_bytes, before_words = self._map, self._bytes, self._words
        self._map = larger
        self._open_views()
        self._bytes[_GENERATIONS] = before_bytes[_GENERATIONS]
        self._words[WATCHED_WORD] = before_words[WATCHED_WORD]
        for at in range(WORDS, WORDS + entries * ENTRY_WORDS, ENTRY_WORDS):
            if before_words[at] and not self._is_revoked(before_words, at):
                copied = bytes(before_bytes[8 * at : 8 * (at + ENTRY_WORDS)])
                place = next((to for to in self._probe_places(before_words[at + 1] >> 32) if not self._words[to]), None)
                if place is not None:
                    self._bytes[8 * place : 8 * (place + ENTRY_WORDS)] = copied
        before_words.release()
        before_bytes.release()
        # In this order, as at the start: until the new file is in place, readers find a table without valid answers.
        _end_table(before)
        self._place_file()
        return True

    def _probe_places(self, tag: int) -> Iterator[int]:
        return (self._entry_offset(number) for number in range(tag, tag + PROBES))

    def _remove_unfinished(self) -> None:
        """Remove files of daemons that were killed before their file was in place."""
        assert self.path is not None
        directory, name = os.path.split(self.path)
        with suppress(OSError):
            for entry in os.scandir(directory):
                if entry.name.startswith(f"{name}."):
                    os.unlink(entry.path)


def _begin_era(era: int) -> int:
    """Return an era's first generation; there is one before it in the same era, for entries that ask first."""
    return (era << ERA_SHIFT | 1) % 2**64


def _identify(path: str) -> tuple[int, int] | None:
    """Return which file lies at a path, by device and inode; ``None`` if none does."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _map_new_file(path: str, size: int) -> mmap.mmap | None:
    """Map a new file; ``None`` if it cannot be made."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, paths.SOCKET_MODE)
    except OSError as error:
        _log.warning("make_winner_table_failed", path=path, reason=str(error))
        return None
    try:
        # Allocate the space now: on a full disk, accessing a sparse file would kill the daemon or a client.
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError as error:
        _log.warning("make_winner_table_failed", path=path, reason=str(error))
        os.unlink(path)
        return None
    finally:
        os.close(descriptor)


def _open_table(path: str) -> mmap.mmap | None:
    """Map the table that the last daemon left; ``None`` if there is none of this version."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        # A write to a page without space on the disk would kill this process.
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
    """Make all entries of a table invalid, and send its readers to the table that replaces it."""
    with memoryview(mapped) as raw, raw.cast("Q") as words:
        words[REPLACED_WORD] = 1
        for slot in range(FIRST_SLOT, WORDS):
            # A generation that this table never had and never will have.
            words[slot] ^= 1 << 63
    mapped.close()


def _map_use_times(path: str) -> memoryview:
    """Map the file in which clients note, by a kernel's slot, when they last looked it up; it is only a hint.

    If it cannot be made, only the daemon notes uses, in its own memory.
    """
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
        _log.warning("open_winner_uses_failed", path=path, reason=str(error))
        return memoryview(bytearray(size)).cast("Q")
