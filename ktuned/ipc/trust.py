"""Trust in code: it may run only if nobody but this user and root can write it (docs/reference/security.md).

A kernel file and the modules that it imports are run, its sources and headers are compiled and run. Another user who
can write one of these files, its directory, or a link in its path could run code as this user. So every step of the
path is checked, as sshd does for a key's file.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from ktuned.model import KtunedError

MAX_LINKS = 40
"""Most links that Linux follows in one path (path_resolution(7))."""


class Untrusted(KtunedError):
    """Another user could have written a path."""

    code = "untrusted"


class Trust:
    """Judges paths; ``exceptions`` are directories that are trusted without a check, with everything below them."""

    def __init__(self, exceptions: Iterable[str] = ()) -> None:
        self.exceptions = frozenset(map(os.path.realpath, exceptions))

    def check_directory(self, path: str) -> None:
        """Check a directory whose kernel files are to be run.

        Raises:
            Untrusted: another user can write it, or replace it.
        """
        self._check_steps(path, {os.path.realpath(path)})

    def check_file(self, path: str) -> None:
        """Check a file that is to be run, and its directory, from which it may import.

        Raises:
            Untrusted: another user can write it, put modules beside it, or replace it.
        """
        real = os.path.realpath(path)
        self._check_steps(path, {real, os.path.dirname(real), os.path.dirname(os.path.abspath(path))})

    def check_files(self, paths: Iterable[str]) -> None:
        """Check files as :meth:`check_file` does, but each directory once; absent files are left out.

        Raises:
            Untrusted: another user can write one of them.
        """
        checked: set[str] = set()
        for path in paths:
            try:
                found = os.lstat(path)
            except OSError:
                continue
            directory = os.path.dirname(path)
            if (
                directory in checked
                and stat.S_ISREG(found.st_mode)
                and _find_fault(path, found, may_be_sticky=False) is None
            ):
                continue
            self.check_file(path)
            checked.add(directory)

    def _check_steps(self, path: str, closed: set[str]) -> None:
        """Check every step of ``path``. A step in ``closed`` must not be writable by others even if it is sticky."""
        real = os.path.realpath(path)
        if any(str(place) in self.exceptions for place in (Path(real), *Path(real).parents)):
            return
        for place, found in _walk_path(path):
            fault = _find_fault(place, found, may_be_sticky=place not in closed)
            if fault:
                reason, remedy = fault
                on_the_way = "" if place == path else f" on the way to {path}"
                raise Untrusted(
                    f"{place}{on_the_way} {reason}",
                    hint=f"{remedy.format(place=place)}, or name the directory in config.toml's trusted_directories",
                )


def _find_fault(path: str, found: os.stat_result, *, may_be_sticky: bool) -> tuple[str, str] | None:
    """Return the fault of one step, and how to fix it."""
    us = os.geteuid()
    if found.st_uid not in (us, 0):
        return f"belongs to uid {found.st_uid}, neither to you ({us}) nor to root", "chown it"
    # A link's own mode has no meaning. In a sticky directory, only the owner can replace a file.
    if stat.S_ISLNK(found.st_mode) or (may_be_sticky and found.st_mode & stat.S_ISVTX):
        return None
    # A group with the user's own number has no other members: distributions with a umask of 002 create such groups.
    is_private_group = found.st_gid == 0 or found.st_gid == os.getegid() == us
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not is_private_group):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})", "chmod go-w {place}"
    # The group's bits are an ACL's mask: without them, no entry of the ACL can write.
    if found.st_mode & stat.S_IWGRP and (writer := _find_writer_in_acl(path, us)):
        return f"can be written by the {writer}, by its ACL", "setfacl -b {place}"
    return None


_ACL_VERSION = 2
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_TAGS = {0x02: "user", 0x08: "group"}
"""Tags of the entries for named users and groups (``linux/posix_acl.h``)."""

_ACL_WRITE = 2


def _find_writer_in_acl(path: str, us: int) -> str:
    """Return another user or group that a file's POSIX ACL lets write, in words; empty if there is none."""
    try:
        acl = os.getxattr(path, "system.posix_acl_access", follow_symlinks=False)
    except OSError:
        # It has none, or its file system knows none.
        return ""
    (version,) = struct.unpack_from("<I", acl)
    if version != _ACL_VERSION:
        return f"unknown (an ACL of version {version})"
    for tag, permissions, number in _ACL_ENTRY.iter_unpack(acl[4:]):
        kind = _ACL_TAGS.get(tag)
        if kind and permissions & _ACL_WRITE and number not in ((us, 0) if kind == "user" else (0,)):
            return f"{kind} {number}"
    return ""


def _walk_path(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each directory, link and file on the way to a path, up to the first that is missing."""
    rest = [part for part in os.path.abspath(path).split("/") if part]
    place, links = "/", 0
    yield place, os.lstat(place)
    while rest:
        part = rest.pop(0)
        if part in (".", ".."):
            place = os.path.dirname(place) if part == ".." else place
            continue
        step = os.path.join(place, part)
        try:
            found = os.lstat(step)
        except OSError:
            return
        yield step, found
        if not stat.S_ISLNK(found.st_mode):
            place = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise Untrusted(f"{path} leads through more than {MAX_LINKS} links", hint="remove the loop")
        target = os.readlink(step)
        if target.startswith("/"):
            place = "/"
        rest = [part for part in target.split("/") if part] + rest
