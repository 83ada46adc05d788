"""Stamps of files, by which it is known whether a path still holds what was read there.

================  ==============================================================
path              stamp
================  ==============================================================
a file            SHA-256 of its bytes
a pipe, a socket  ``special:`` and its kind: it cannot be read
an absent one     empty; likewise for a link that leads nowhere
a directory       ``dir``, if it only matters that it exists
a listed one      ``dir:`` and a digest of the names in it, with their kinds; virtual environments are left out
a tested file     its stamp, and after ``|`` its owner's permissions, extended attributes and link,
                  and after ``@`` the time of its last change, if code asked for it
================  ==============================================================

A file that is reached through links is stamped under each path on the way: the links' paths, because a link's target
may be changed, and the file's own path, because the file may be edited there. The stamp of a link to a directory says
where it leads (``dir>TARGET``).

A *sight* (:class:`Sight`) is weaker and cheaper: the result of ``stat``. Once a sight has settled, equal sights mean
equal contents.
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
from typing import NamedTuple

from ktuned.ipc.regular_files import open_regular_file

MAX_LINKS = 40
"""Most links that are followed for one file, as in Linux: a longer chain is taken for a circle."""

ABSENT = ""
"""The stamp of a file that is not there."""


def normalize_path(path: Path) -> Path:
    """Return an absolute path without ``.`` and ``..``. It keeps its links, unless ``..`` follows one of them."""
    plain = Path(os.path.abspath(path))
    # Behind a linked directory, `..` is its target's parent.
    return plain if ".." not in path.parts or plain.resolve() == path.resolve() else path.resolve()


DIRECTORY = "dir"
"""The stamp of a directory if it only matters that it exists."""

LISTING = f"{DIRECTORY}:"
"""Prefix of the stamp of a directory's names. If the directory is a link, its target follows after ``>``."""

_SPECIAL = "special:"

LARGE_BYTES = 4 << 20
"""From this size on, a file's digest is kept while its sight stays the same: to digest it takes some 10 ms."""

MAX_KEPT = 256
SETTLED_NS = 2_000_000_000
"""Tick of the coarsest clock of a common file system (FAT). A file that changed more recently may change again within
the same tick, and keep its sight."""


class Sight(NamedTuple):
    """The result of ``stat`` for a file or directory; messages carry it as text."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def from_stat(cls, found: os.stat_result) -> Sight:
        """Return the sight in a result of ``stat``."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def is_settled(self, now_ns: int) -> bool:
        """Return whether any later change will give another sight, if this one was taken after ``now_ns``."""
        return self.changed_ns < now_ns - SETTLED_NS

    def __str__(self) -> str:
        return ":".join(map(str, self))


_kept: dict[Sight, str] = {}


def stamp(path: Path) -> str:
    """Return the stamp of a file or of a directory's names; :data:`ABSENT` if nothing there can be read.

    Pipes and devices are not read, because a pipe would make the reader wait, and a device has no end.
    """
    with pause_recording():
        return _digest_file(path)


def stamp_attributes(path: Path, *, has_times: bool) -> str:
    """Return the part of a regular file's stamp that says what ``stat`` shows of it; empty for anything else."""
    with pause_recording():
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                return ""
            extended = os.listxattr(path)
            # What others may do is decided by the umask under which a file was checked out.
            text = f"|{found.st_mode & stat.S_IRWXU:o}"
            if extended:
                values = [name.encode() + b"=" + os.getxattr(path, name) for name in sorted(extended)]
                text += f"+{hashlib.sha256(bytes(0).join(values)).hexdigest()[:16]}"
            if path.is_symlink():
                text += f">{os.readlink(path)}"
        except OSError:
            return ""
    return f"{text}@{found.st_mtime_ns}" if has_times else text


def stamp_whole(path: Path) -> str:
    """Return the stamp of a path with all parts that any stamp of it can have."""
    return f"{stamp(path)}{stamp_attributes(path, has_times=True)}"


def _digest_file(path: Path) -> str:
    try:
        with open_regular_file(path) as stream:
            found = os.fstat(stream.fileno())
            if found.st_size < LARGE_BYTES:
                return hashlib.file_digest(stream, "sha256").hexdigest()
            sight = Sight.from_stat(found)
            if sight not in _kept:
                is_settled = sight.is_settled(time_ns())
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                if not is_settled:
                    return digest
                if len(_kept) >= MAX_KEPT:
                    _kept.clear()
                _kept[sight] = digest
            return _kept[sight]
    except OSError:
        listing = _digest_listing(path)
        return f"{listing}{_describe_target(path)}" if listing else _describe_special(path)


def _describe_special(path: Path) -> str:
    """Return the stamp of a pipe, a socket or a device, which is not opened; :data:`ABSENT` for anything else."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError:
        return ABSENT
    return ABSENT if kind in (stat.S_IFREG, stat.S_IFDIR) else f"{_SPECIAL}{kind:o}"


def stamp_directory(path: Path) -> str:
    """Return the stamp of a directory, whatever names are in it; for a link, with its target.

    The target counts because code that resolves a link continues with the target's name. A later change of the link
    would not show in any of the files that the code opens then.
    """
    with pause_recording():
        return f"{DIRECTORY}{_describe_target(path)}" if path.is_dir() else ABSENT


def _describe_target(path: Path) -> str:
    """Return the final target of a link, which is the same for each link of a chain."""
    return f">{os.path.realpath(path)}" if path.is_symlink() else ""


pause_recording: Callable[[], AbstractContextManager[None]] = nullcontext
"""Entered while files are read for stamps. An observed process replaces it, so that these reads are not recorded."""


def _digest_listing(path: Path) -> str:
    try:
        with os.scandir(path) as entries:
            # An environment inside of a project belongs to the interpreter, which may as well lie elsewhere.
            names = sorted(
                (os.fsencode(entry.name), _name_kind(entry))
                for entry in entries
                if not os.path.exists(f"{entry.path}/pyvenv.cfg")
            )
    except OSError:
        return ABSENT
    return LISTING + hashlib.sha256(b"\0".join(name + b"/" + kind for name, kind in names)).hexdigest()


def _name_kind(entry: os.DirEntry[str]) -> bytes:
    is_directory, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
    return b"link" if entry.is_symlink() else b"dir" if is_directory else b"file" if is_file else b"special"


def is_directory_stamp(digest: str) -> bool:
    """Return whether a stamp is that of a directory without the names in it."""
    return digest.partition(">")[0] == DIRECTORY


def is_special_stamp(digest: str) -> bool:
    """Return whether a stamp is that of a pipe, a socket or a device."""
    return digest.startswith(_SPECIAL)


def stamps_agree(held: str, now: str) -> bool:
    """Return whether two stamps of a path agree in the parts that both have: names, attributes, times."""
    if held == now:
        return True
    (held, held_bar, held_rest), (now, now_bar, now_rest) = held.partition("|"), now.partition("|")
    (one, _, time), (other, _, time_now) = held_rest.partition("@"), now_rest.partition("@")
    if held_bar and now_bar and (one != other or (time and time_now and time != time_now)):
        return False
    # A stamp of attributes alone says nothing of the content: what has attributes has some.
    if held == now or (held_bar and not held) or (now_bar and not now):
        return True
    (one, _, leads), (other, _, leads_now) = held.partition(">"), now.partition(">")
    are_directories = held.startswith(DIRECTORY) and now.startswith(DIRECTORY)
    return are_directories and DIRECTORY in (one, other) and leads == leads_now


def read_sight(path: str) -> Sight | None:
    """Return the sight of what a path leads to, or ``None`` if there is nothing."""
    try:
        with pause_recording():
            return Sight.from_stat(os.stat(path))
    except (OSError, ValueError):
        return None


def read_sight_text(path: str) -> str:
    """Return the sight of what a path leads to as text, or :data:`ABSENT`."""
    return str(read_sight(path) or ABSENT)


def find_changed_file(sights: Mapping[str, str]) -> str:
    """Return the first file whose sight has changed; empty if none has."""
    return next((path for path, held in sights.items() if read_sight_text(path) != held), "")


def stamp_files(paths: Iterable[Path], known: Mapping[Path, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the stamps of files, by their paths and by the paths of the links on the way.

    Args:
        paths: the files.
        known: digests of files whose bytes were read before. These are not read again, as they may have changed since.
    """
    found: dict[str, str] = {}
    with pause_recording():
        for path in paths:
            held = known[path] if path in known else stamp(path)
            # A directory's stamp with a target belongs to links only; the target itself has another stamp.
            places = filter(Path.is_symlink, follow_links(path)) if held.startswith(DIRECTORY) else follow_links(path)
            found |= {str(path): held, **{str(place): held for place in places}}
    return found


def follow_links(path: Path) -> Iterator[Path]:
    """Yield a path, and every other path on the way over its links to the file."""
    yield path
    place = path
    for _ in range(MAX_LINKS):
        try:
            place = normalize_path(place.parent / os.readlink(place))
        except OSError:
            break
        yield place
    real = Path(os.path.realpath(path))
    if real not in (path, place):
        yield real
