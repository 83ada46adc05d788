"""The daemon's side of the generation table: the one writer (see :mod:`ktuned_client.generations` for the layout)."""

from __future__ import annotations

import mmap
import os
import secrets
from typing import Final

import structlog

from ktuned_client import paths
from ktuned_client.generations import COUNT_WORD, EPOCH_WORD, FIRST_SLOT, MAGIC, WORDS, slot_of

TABLE_NAME: Final = "ktuned.generations"
"""Beside the socket, in its private directory. It stays when the daemon ends, because clients have it mapped: the last
generations hold until the next daemon writes to the same file."""

_log = structlog.get_logger()


class Generations:
    """Announces changes to clients in the table at ``path``; ``path`` is ``None`` where there can be no file."""

    def __init__(self, directory: str, *, epoch: int) -> None:
        self.path: str | None = os.path.join(directory, TABLE_NAME)
        try:
            self._map = _map(self.path)
        except OSError as error:
            _log.warning("no_generation_table", path=self.path, reason=str(error))
            self.path = None
            self._map = mmap.mmap(-1, 8 * WORDS)
            _begin(self._map)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self._words[EPOCH_WORD] = epoch
        self.bump_all()

    def of(self, kernel: str) -> int:
        """Return a kernel's generation, by its full name."""
        return self._words[slot_of(kernel)]

    def bump(self, kernel: str) -> None:
        """Announce that the answers for a kernel may have changed; to be called after they have."""
        self._add(slot_of(kernel))

    def bump_all(self) -> None:
        """Announce that any answer may have changed."""
        for slot in range(FIRST_SLOT, WORDS):
            self._add(slot)

    def close(self) -> None:
        """Unmap the file, which stays."""
        self._words.release()
        self._bytes.release()
        self._map.close()

    def _add(self, slot: int) -> None:
        self._words[slot] = (self._words[slot] + 1) % 2**64


def _map(path: str) -> mmap.mmap:
    """Map the existing table, or a new one in its place if it is not valid."""
    try:
        return _open(path)
    except FileNotFoundError:
        pass
    except ValueError as error:
        _log.warning("generation_table_replaced", path=path, reason=str(error))
    staged = f"{path}.{os.getpid()}"
    descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, paths.SOCKET_MODE)
    try:
        # Space is allocated now: on a full disk, a write to a sparse file would kill the daemon, and a read a client.
        os.posix_fallocate(descriptor, 0, 8 * WORDS)
        mapped = mmap.mmap(descriptor, 8 * WORDS)
        _begin(mapped)
        os.rename(staged, path)
    except BaseException:
        os.unlink(staged)
        raise
    finally:
        os.close(descriptor)
    return mapped


def _open(path: str) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_size != 8 * WORDS or found.st_uid != os.geteuid() or found.st_blocks * 512 < 8 * WORDS:
            raise ValueError("it is not of the right size or owner")
        mapped = mmap.mmap(descriptor, 8 * WORDS)
    finally:
        os.close(descriptor)
    if mapped[: len(MAGIC)] != MAGIC:
        mapped.close()
        raise ValueError("it is of another version")
    return mapped


def _begin(mapped: mmap.mmap) -> None:
    """Write the header, and generations that no other table has had."""
    with memoryview(mapped) as raw, raw.cast("Q") as words:
        start = secrets.randbits(62)
        for slot in range(FIRST_SLOT, WORDS):
            words[slot] = start
        words[COUNT_WORD] = WORDS
        raw[: len(MAGIC)] = MAGIC
