"""The spool's files: applications write them as a whole or not at all, and the daemon does not trust them.

A record's name is the digest of its content, so that two hundred processes with the same call leave a single file. It
is written under another name and then renamed: a file with the right suffix is complete, even if a writer was killed.
The daemon only reads plain files of its own user that have no second hard link and are not too large.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import msgpack
import msgspec

from ktuned.spool.records import CallRecord, LaunchCounts, digest_content
from ktuned.user_directories import NoHomeDirectory, find_user_directories

RECORD_SUFFIX = ".call"
COUNTS_SUFFIX = ".launches"

TEXTS_SUFFIX = ".texts"

STAGED_PREFIX = "."
"""Prefix of the name of a file that is being written, or whose writer was killed."""

MAX_RECORD_BYTES = 80 << 20
"""Largest record: a call's integer tensors, of which an application copies at most 64 MiB, and its configs."""

MAX_RECORDS = 10_000
"""Most records that wait for a daemon: a month's worth. Applications then leave no more."""

_PRIVATE = 0o700


class RefusedFile(Exception):
    """A file of the spool that must not be read; the message says why."""


def spool_directory(state: Path | None = None) -> Path:
    """Return the spool of a state directory; by default, that of this process's user.

    Raises:
        OSError: There is no home directory.
    """
    try:
        return (state or find_user_directories().state) / "spool"
    except NoHomeDirectory as error:
        raise OSError(errno.ENOENT, str(error)) from None


def leave_record(directory: Path, record: CallRecord) -> str:
    """Write a call into the spool, unless it is there, and return its file's name.

    Raises:
        OSError: It cannot be written, it is too large (``EFBIG``), or too many records wait already (``EDQUOT``).
    """
    content = record.to_bytes()
    if len(content) > MAX_RECORD_BYTES:
        raise OSError(errno.EFBIG, f"the call has {len(content)} bytes, and at most {MAX_RECORD_BYTES} are read")
    name = f"{digest_content(content)}{RECORD_SUFFIX}"
    if not (directory / name).exists():
        _require_room(directory)
        _write_file(directory, name, content)
    return name


def leave_counts(directory: Path, counts: LaunchCounts) -> None:
    """Write counts of launches into the spool.

    Raises:
        OSError: They cannot be written, or too many files wait already (``EDQUOT``).
    """
    _require_room(directory)
    # Write a new file each time: the daemon adds up the counts.
    name = f"{os.getpid()}-{threading.get_native_id()}-{os.urandom(6).hex()}{COUNTS_SUFFIX}"
    _write_file(directory, name, counts.to_bytes())


def keep_texts(directory: Path, digest: str, texts: Mapping[str, bytes]) -> None:
    """Keep what an application has lowered of a call by now, for its next start.

    Raises:
        OSError: They cannot be written, or they are too large (``EFBIG``).
    """
    content: bytes = msgpack.packb(dict(texts))
    if len(content) > MAX_RECORD_BYTES:
        raise OSError(errno.EFBIG, f"the texts have {len(content)} bytes, and at most {MAX_RECORD_BYTES} are read")
    _write_file(directory, f"{digest}{TEXTS_SUFFIX}", content)


def read_texts(directory: Path, digest: str) -> dict[str, bytes]:
    """Return what :func:`keep_texts` has kept; nothing if there is no file, or it is damaged."""
    try:
        found = msgpack.unpackb(read_file(directory / f"{digest}{TEXTS_SUFFIX}"))
        return msgspec.convert(found, dict[str, bytes], builtin_types=(bytes,))
    except (FileNotFoundError, RefusedFile, ValueError, msgpack.UnpackException):
        return {}


def forget_texts(directory: Path, digest: str) -> None:
    """Remove what :func:`keep_texts` has kept, because the call is recorded."""
    (directory / f"{digest}{TEXTS_SUFFIX}").unlink(missing_ok=True)


def read_file(path: Path) -> bytes:
    """Return the content of a file of the spool.

    Raises:
        RefusedFile: It is a link, another user's, not a plain file, or too large.
        FileNotFoundError: It is gone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else f"it cannot be read: {error.strerror}"
        raise RefusedFile(why) from None
    try:
        _require_plain(os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_RECORD_BYTES)
    except OSError as error:
        raise RefusedFile(f"it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _require_plain(known: os.stat_result) -> None:
    if not stat.S_ISREG(known.st_mode):
        raise RefusedFile("it is not a plain file")
    if known.st_uid != os.geteuid():
        raise RefusedFile(f"it belongs to the user {known.st_uid}")
    if known.st_nlink != 1:
        raise RefusedFile("it has a second hard link")
    if known.st_size > MAX_RECORD_BYTES:
        raise RefusedFile(f"it has {known.st_size} bytes, and at most {MAX_RECORD_BYTES} are read")


def _require_room(directory: Path) -> None:
    if directory.is_dir():
        with os.scandir(directory) as entries:
            if sum(not entry.name.startswith(STAGED_PREFIX) for entry in entries) < MAX_RECORDS:
                return
        raise OSError(errno.EDQUOT, f"{MAX_RECORDS} calls wait in {directory}; start a daemon: `ktuned start`")


def _write_file(directory: Path, name: str, content: bytes) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    descriptor, staged = tempfile.mkstemp(dir=directory, prefix=STAGED_PREFIX)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(staged, directory / name)
    except BaseException:
        os.unlink(staged)
        raise
