"""The log that a worker and its descendants share: a file of fixed size that each of them maps.

``observer.c`` writes it, with the same layout. The log holds each name once per epoch, in the order in which the names
were first used. The worker begins an epoch when it needs to know what is read from then on. If the log is full, this is
marked in it, but the observed programs continue.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

LOG_VARIABLE = "KTUNED_OBSERVER"
"""The variable that names the log; children inherit it."""

_MAGIC = 0x6B6F6231
_ENTRIES, _SLOTS, _ARENA = 1 << 15, 1 << 16, 4 << 20
_HEADER = struct.Struct("<6I")
_MARKS_AT, _MARKS = 64, 192
_INDEX_AT = _MARKS_AT + _MARKS
_SLOTS_AT = _INDEX_AT + 4 * _ENTRIES
_ARENA_AT = _SLOTS_AT + 4 * _SLOTS
SIZE = _ARENA_AT + _ARENA
"""Size of the log: 4.5 MiB. A large compile enters some thousand names of 100 bytes."""

_ENTRY = struct.Struct("<IIIBBH")
_EPOCH_AT, _SILENT_AT, _OWNER_AT = 4, 8, 24


class Kind(StrEnum):
    """How a name was used."""

    OPENED = "o"
    WRITTEN = "w"
    TESTED = "t"
    LISTED = "l"
    FOLLOWED = "k"
    EXECUTED = "x"
    SEARCHED = "s"
    MAPPED = "m"
    VARIABLE = "v"
    ENVIRONMENT = "e"
    CONNECTED = "c"
    HIDDEN = "h"
    REFUSED = "u"
    RENAMED = "r"


class Note(NamedTuple):
    """One entry of the log; ``is_found`` if the name existed, ``pid`` is the process that noted it first."""

    kind: Kind
    is_found: bool
    name: str
    pid: int
    epoch: int


class Log:
    """The worker's view of a log: it reads notes, and controls what is noted."""

    def __init__(self, place: str) -> None:
        with open(place, "r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), SIZE)
        self._read = 0

    @classmethod
    def open_own(cls, environment: Mapping[str, str] = os.environ) -> Log | None:
        """Return the log of this process; None if it is not observed."""
        place = environment.get(LOG_VARIABLE)
        # The variable is not enough: the interpreter may not have loaded the library, or may use another log.
        if not place or not _is_mapped_here(place):
            return None
        try:
            return cls(place)
        except (OSError, ValueError):
            return None

    @staticmethod
    def create(place: Path, marks: Mapping[str, str] | None = None) -> None:
        """Make an empty log.

        Args:
            place: its file.
            marks: variables that processes inherit but do not see, two at most, with 190 characters.

        Raises:
            OSError: it cannot be made.
        """
        with open(place, "wb") as stream:
            # Allocate all of it now, because a write to a mapped file kills the writer if the disk is full.
            os.posix_fallocate(stream.fileno(), 0, SIZE)
            stream.write(_HEADER.pack(_MAGIC, 1, 0, 0, 0, 0))
            stream.seek(_MARKS_AT)
            stream.write("".join(f"{name}={value}\0" for name, value in (marks or {}).items()).encode())

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return int(struct.unpack_from("<I", self._map, _EPOCH_AT)[0])

    def begin_epoch(self) -> int:
        """Begin an epoch, in which each name is noted anew; return its number."""
        epoch = self.epoch + 1
        struct.pack_into("<I", self._map, _EPOCH_AT, epoch)
        return epoch

    def set_owner(self, pid: int) -> None:
        """Say which process runs the project's code; in all others, the system's own files are not noted."""
        struct.pack_into("<I", self._map, _OWNER_AT, pid)

    def set_silent(self, is_silent: bool) -> None:
        """Stop noting in all processes, or start it again."""
        struct.pack_into("<I", self._map, _SILENT_AT, is_silent)

    @property
    def is_silent(self) -> bool:
        """True while nothing is noted."""
        return int(struct.unpack_from("<I", self._map, _SILENT_AT)[0]) != 0

    @property
    def is_full(self) -> bool:
        """True if a name was lost because there was no room."""
        return int(_HEADER.unpack_from(self._map)[5]) != 0

    def read_notes(self) -> Iterator[Note]:
        """Yield the notes since the last call."""
        count = min(_HEADER.unpack_from(self._map)[3], _ENTRIES)
        while self._read < count:
            (offset,) = struct.unpack_from("<I", self._map, _INDEX_AT + 4 * self._read)
            self._read += 1
            # A process that was killed between two steps may have left a hole.
            if not 0 < offset <= _ARENA - _ENTRY.size:
                continue
            at = _ARENA_AT + offset
            _, epoch, pid, kind, found, length = _ENTRY.unpack_from(self._map, at)
            name = self._map[at + _ENTRY.size : at + _ENTRY.size + length]
            yield Note(Kind(chr(kind)), bool(found), os.fsdecode(name), pid, epoch)

    def empty_if_half_full(self) -> None:
        """Empty the log if it is half full; a child that writes meanwhile may lose its note."""
        *_, count, used, is_full = _HEADER.unpack_from(self._map)
        if not is_full and count < _ENTRIES // 2 and used < _ARENA // 2:
            return
        self._map[_INDEX_AT:_ARENA_AT] = bytes(_ARENA_AT - _INDEX_AT)
        struct.pack_into("<3I", self._map, 12, 0, 0, 0)
        self._read = 0


def prove_observed(log: Log) -> str:
    """Make one known access of each kind, and return what this process's observer does not see; empty if it sees all.

    The settings of the observer are no proof: the loader may have dropped the library, or loaded a part of it.
    """
    # Imported here, because only workers prove anything.
    import ctypes

    log.begin_epoch()
    name = f"ktuned-proof-{os.getpid()}"
    with suppress(OSError):
        os.stat(f"/{name}/tested")
    with suppress(OSError), open(f"/{name}/opened"):
        pass
    ctypes.CDLL(None).getenv(name.encode())
    child = os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {LOG_VARIABLE: os.environ.get(LOG_VARIABLE, "")})
    os.waitpid(child, 0)
    notes = list(log.read_notes())
    seen = {(note.kind, note.name) for note in notes}
    proofs = {
        "tests of files": (Kind.TESTED, f"/{name}/tested") in seen,
        "opened files": (Kind.OPENED, f"/{name}/opened") in seen,
        "variables": (Kind.VARIABLE, name) in seen,
        "children": any(note.pid == child for note in notes),
    }
    missing = [what for what, is_seen in proofs.items() if not is_seen]
    library = os.environ.get("LD_PRELOAD", "")
    return f"the observer {library} does not see this worker's {', '.join(missing)}" if missing else ""


def _is_mapped_here(place: str) -> bool:
    """Return whether the library has mapped a log into this process."""
    real = os.path.realpath(place)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        return any(line.rstrip("\n").endswith(real) for line in stream)
