"""A directory as a team's storage: a network file system, a synchronised folder, a second disk.

An object is written beside its place, synced and renamed, so a reader finds all of it or nothing, on every POSIX file
system. File systems hang, and a thread that hangs in one cannot be stopped. So each operation runs in a thread that is
abandoned after its deadline; when :data:`MAX_HANGING` abandoned threads still hang, no new operation begins.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio.to_thread

from ktuned_team.calls import Entry
from ktuned_team.storage import MAX_LISTED, OPERATION_S, Storage, StorageError, UnreadableObject, within_deadline

T = TypeVar("T")

STAGED: Final = ".staged-"
"""Prefix of files that are being written; a sweep removes those that a killed writer left."""

MAX_HANGING: Final = 32
"""Most threads that may hang in a file system, so that a server that is away for days does not cost thousands."""

_OF_ONE_FILE: Final = (errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Errors of reading one file that say nothing about others: missing rights, a bad block, not a file at all."""


class DirectoryStorage(Storage):
    """Objects as files below a directory. It must exist: without its mount, files would go to the local disk."""

    def __init__(self, directory: str, *, deadline_s: float = OPERATION_S) -> None:
        self._directory = Path(os.path.expanduser(directory))
        self._deadline_s = deadline_s
        self._running: set[object] = set()
        self._abandoned: set[object] = set()

    async def list_entries(self, prefix: str) -> list[Entry]:
        """Return the files below a prefix."""
        return await self._run_in_thread("listing it", partial(self._list_files, prefix))

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return a file's bytes."""
        return await self._run_in_thread(f"reading {name}", partial(self._read_file, name, limit))

    async def write(self, name: str, data: bytes) -> None:
        """Write a file beside its place, and rename it."""
        await self._run_in_thread(f"writing {name}", partial(self._write_file, name, data))

    async def remove(self, name: str) -> None:
        """Remove a file, and its directory if that is empty."""
        await self._run_in_thread(f"removing {name}", partial(self._remove_file, name))

    async def _run_in_thread(self, doing: str, work: Callable[[], T]) -> T:
        url = str(self._directory)
        if self._count_hanging() >= MAX_HANGING:
            raise StorageError(f"{url}: {doing}: the file system does not answer", hint="check what is mounted there")
        key = object()

        def run_watched() -> T:
            # Recorded in the thread itself, because work that is cancelled before it begins never hangs.
            self._running.add(key)
            try:
                return work()
            finally:
                self._running.discard(key)

        async with within_deadline(doing, url, self._deadline_s):
            try:
                # A thread that hangs stays behind until the file system answers.
                return await anyio.to_thread.run_sync(run_watched, abandon_on_cancel=True)
            except anyio.get_cancelled_exc_class():
                self._abandoned.add(key)
                raise
            except FileNotFoundError as error:
                hint = "make it, or mount what belongs there"
                raise StorageError(f"{url}: {doing}: it does not exist", hint=hint) from error
            except OSError as error:
                raise StorageError(f"{url}: {doing}: {error.strerror or error}") from error

    def _count_hanging(self) -> int:
        self._abandoned &= self._running
        return len(self._abandoned)

    def _check_directory(self) -> None:
        if not stat.S_ISDIR(os.stat(self._directory).st_mode):
            raise StorageError(f"{self._directory} is no directory", hint="name one as url of [share]")

    def _list_files(self, prefix: str) -> list[Entry]:
        self._check_directory()
        entries: list[Entry] = []
        for path in _walk_files(self._directory / prefix):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if len(entries) >= MAX_LISTED:
                break
            entries.append(Entry(path.relative_to(self._directory).as_posix(), status.st_size, status.st_mtime))
        return entries

    def _read_file(self, name: str, limit: int) -> bytes | None:
        self._check_directory()
        try:
            with open(self._directory / name, "rb", opener=_open_regular_file) as stream:
                return stream.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno not in _OF_ONE_FILE:
                raise
            raise UnreadableObject(f"{self._directory}: reading {name}: {error.strerror}") from error

    def _write_file(self, name: str, data: bytes) -> None:
        self._check_directory()
        path = self._directory / name
        # Other members of the team must read it: take the directory's rights, not the daemon's private umask.
        mode = os.stat(self._directory).st_mode
        _make_directories(path.parent, self._directory, mode)
        staged = path.with_name(f"{STAGED}{secrets.token_hex(8)}")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode & 0o666)
                os.fsync(stream.fileno())
            os.rename(staged, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(staged)
            raise

    def _remove_file(self, name: str) -> None:
        self._check_directory()
        path = self._directory / name
        with suppress(FileNotFoundError):
            os.unlink(path)
        # Fails while the directory has files. An empty directory that stays behind does no harm.
        with suppress(OSError):
            os.rmdir(path.parent)


def _walk_files(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory, including those that a killed writer left, but no links."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _make_directories(directory: Path, top: Path, mode: int) -> None:
    for parent in reversed([directory, *directory.parents]):
        if not parent.is_relative_to(top) or parent == top:
            continue
        try:
            os.mkdir(parent)
        except FileExistsError:
            continue
        os.chmod(parent, mode & 0o7777)


def _open_regular_file(path: str, flags: int) -> int:
    """Open a file for reading without following links, and without waiting if it is a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
