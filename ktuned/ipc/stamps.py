"""Stamps of files: their paths with the SHA-256 of their bytes, behind every link.

A file that is reached through a link is stamped under each path on the way: that of the link, whose target may be
changed, and that of the file itself, which may be edited where it lies.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import time_ns
from types import MappingProxyType

MAX_LINKS = 40
"""Links that are followed for one file, as many as Linux follows; more are a circle."""

ABSENT = ""
"""The stamp of a file that is not there."""


def lexical(path: Path) -> Path:
    """Return an absolute path without ``.`` and ``..`` that keeps its links, where these do not forbid it."""
    plain = Path(os.path.abspath(path))
    # Behind a linked directory, `..` is its target's parent.
    return plain if ".." not in path.parts or plain.resolve() == path.resolve() else path.resolve()


DIRECTORY = "dir"
"""The stamp of a directory that was asked for, and not for the names in it."""

LISTING = f"{DIRECTORY}:"
"""Prefix of the stamp of a directory: a digest of the names in it. Where it is a link, its target follows ``>``."""

LARGE_BYTES = 4 << 20
"""A file of this size takes some 10 ms to digest: its digest is kept, for as long as the file looks the same."""

MAX_KEPT = 256
SETTLED_NS = 2_000_000_000
"""A file that changed more recently may change again within a tick of a coarse clock, and look the same."""

_kept: dict[tuple[int, ...], str] = {}


def stamp(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, or :data:`ABSENT` when there is none that can be read.

    A directory has one of its names, but for hidden ones and editors' copies. What is neither has none: a pipe would be
    waited at, and a device has no end.
    """
    with pause_recording():
        return _stamp(path)


def _stamp(path: Path) -> str:
    try:
        with open(path, "rb", opener=_at_once) as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ABSENT
            if found.st_size < LARGE_BYTES:
                return hashlib.file_digest(stream, "sha256").hexdigest()
            looks = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if looks not in _kept:
                is_settled = found.st_ctime_ns < time_ns() - SETTLED_NS
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                if not is_settled:
                    return digest
                if len(_kept) >= MAX_KEPT:
                    _kept.clear()
                _kept[looks] = digest
            return _kept[looks]
    except IsADirectoryError:
        listing = _listing(path)
        return listing and f"{listing}{_leads_to(path)}"
    except OSError:
        return ABSENT


def stamp_directory(path: Path) -> str:
    """Return the stamp of a directory whatever names are in it: where it is a link, it says where that leads.

    Code that resolves a link goes on with its target's name, and nothing that it opens then shows that the link was
    swapped.
    """
    with pause_recording():
        return f"{DIRECTORY}{_leads_to(path)}" if path.is_dir() else ABSENT


def _leads_to(path: Path) -> str:
    """Return where a link leads in the end: each link of a chain says the same."""
    return f">{os.path.realpath(path)}" if path.is_symlink() else ""


pause_recording: Callable[[], AbstractContextManager[None]] = nullcontext
"""How a process reads for a stamp: in an observed one that is none of what it observes."""


def _listing(path: Path) -> str:
    try:
        found = os.listdir(path)
        names = sorted(name for name in found if not name.startswith((".", "__pycache__", "4913")))
    except OSError:
        return ABSENT
    kept = (os.fsencode(name) for name in names if not name.endswith("~"))
    return LISTING + hashlib.sha256(b"\0".join(kept)).hexdigest()


def is_way(digest: str) -> bool:
    """Return whether a stamp is that of a directory, whatever names are in it."""
    return digest.partition(">")[0] == DIRECTORY


def agrees(held: str, now: str) -> bool:
    """Return whether what a path holds now is what was recorded of it; names count where both stamps have them."""
    if held == now:
        return True
    (one, _, leads), (other, _, leads_now) = held.partition(">"), now.partition(">")
    are_directories = held.startswith(DIRECTORY) and now.startswith(DIRECTORY)
    return are_directories and DIRECTORY in (one, other) and leads == leads_now


def sight(path: str) -> str:
    """Return how ``stat`` shows a file, as text, or :data:`ABSENT`; equal sights mean equal contents."""
    try:
        with pause_recording():
            found = os.stat(path)
    except (OSError, ValueError):
        return ABSENT
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def first_changed(sights: Mapping[str, str]) -> str:
    """Return the first file that is not as it was seen; nothing if all are."""
    return next((path for path, held in sights.items() if sight(path) != held), "")


def stamps(paths: Iterable[Path], known: Mapping[Path, str] = MappingProxyType({})) -> dict[str, str]:
    """Stamp files by their paths, and by those that links lead to.

    A file whose bytes were read before has the digest that is ``known`` of them: it may hold others by now.
    """
    found: dict[str, str] = {}
    with pause_recording():
        for path in paths:
            held = known[path] if path in known else stamp(path)
            # What links lead to says nothing of them: of a directory only links have this stamp.
            places = filter(Path.is_symlink, trail(path)) if held.startswith(DIRECTORY) else trail(path)
            found |= {str(path): held, **{str(place): held for place in places}}
    return found


def trail(path: Path) -> Iterator[Path]:
    """Yield a path, and every other that its links lead over to the file."""
    yield path
    place = path
    for _ in range(MAX_LINKS):
        try:
            place = lexical(place.parent / os.readlink(place))
        except OSError:
            break
        yield place
    real = Path(os.path.realpath(path))
    if real not in (path, place):
        yield real


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
