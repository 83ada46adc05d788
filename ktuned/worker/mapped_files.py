"""The files that this process has mapped: libraries that a config has brought, and files that changed on the disk.

A library that a config has mapped stays, with data of its own. Some are no reason for a fresh worker: installed ones
(below the interpreter's prefixes or the system's directories), and those that a compiler has made in the lane (in the
worker's scratch directory, or a compiler's cache). A first launch maps parts of a driver or a runtime that every fresh
worker would map again, and the state in them that configs are known to change is restored.

The loader does not load a file again whose name it knows. So a mapped file that has changed on the disk would be used
with its old content.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from glob import glob
from typing import NamedTuple

from ktuned.dependencies import ACCESSES

MAPS = "/proc/self/maps"

_MAPPED = re.compile(rb"^\S+ \S(\S)(\S)(\S) \S+ \S+ [1-9]\d* +(/.*)$", re.MULTILINE)
_GONE = b" (deleted)"
_UNREAL = (b"/dev/", b"/proc/", b"/sys/", b"/memfd:", b"/SYSV", b"/[")
"""Mappings that are no files on a disk."""

_NAME_SERVICES = (b"/run/", b"/var/run/", b"/var/lib/sss/", b"/var/cache/nscd/", b"/var/db/nscd/")
"""Caches of users' and hosts' names: mapped by many processes, and rewritten by their services at any time."""


class MappedFile(NamedTuple):
    """A mapped file: its stamp on the disk, ``None`` if it is gone, and whether code of it is mapped."""

    stamp: tuple[int, int, int] | None
    is_code: bool


_RUNTIMES_SHARE = (b"/dev/shm/cuda", b"/dev/shm/nccl", b"/dev/shm/__KMP_REGISTERED_LIB")
"""Shared memory that drivers and OpenMP's runtimes make on their first use in any worker."""


class MappedFiles:
    """Remembers the files that this process had mapped, and how each looked on the disk when it was first seen.

    Attributes:
        shared: the files and shared memory that were mapped to write to, as others may have, at the last look.
    """

    def __init__(self) -> None:
        self.shared: frozenset[bytes] = frozenset()
        self._known: dict[bytes, MappedFile] = {}
        self._expected_places: tuple[bytes, ...] = ()

    def expect_libraries_below(self, directories: Iterable[str]) -> None:
        """Accept libraries of single configs below these directories, and below those of compilers' caches."""
        self._expected_places = (
            *(os.fsencode(os.path.realpath(directory)) + b"/" for directory in directories),
            *_list_generated_directories(),
            *_INSTALLED,
        )

    def list_mapped_files(self) -> Iterable[bytes]:
        """Return the files that are mapped now."""
        return self._read_mapped_files()

    def accept_mapped_files(self) -> None:
        """Accept all files that are mapped now. Known files keep their stamps, which show if they have changed."""
        self._known = {**self._read_mapped_files(), **self._known}

    def find_new_libraries(self) -> list[str]:
        """Return the libraries that were mapped since the last call, and are in no expected place."""
        new = {name: found for name, found in self._read_mapped_files().items() if name not in self._known}
        self._known |= new
        return [
            os.fsdecode(name)
            for name, found in new.items()
            if found.is_code and not name.startswith(self._expected_places)
        ]

    def find_changed_file(self) -> str:
        """Return a file that has changed on the disk since it was mapped; empty if there is none."""
        with ACCESSES.pause_recording():
            for name, known in self._known.items():
                if known.stamp is not None and _stamp_file(name) != known.stamp:
                    return os.fsdecode(name)
        return ""

    def _read_mapped_files(self) -> dict[bytes, MappedFile]:
        with ACCESSES.pause_recording():
            return self._look_at_mapped_files()

    def _look_at_mapped_files(self) -> dict[bytes, MappedFile]:
        """Return the mapped files with their stamps. A known file keeps the stamp that it was first seen with."""
        mapped: dict[bytes, MappedFile] = {}
        shared: set[bytes] = set()
        for match in _MAPPED.finditer(_read_maps()):
            writable, executable, sharing, name = match.groups()
            # Skip a file that is mapped shared and writable: writes to the mapping change it on the disk.
            is_shared, is_unreal = writable == b"w" and sharing == b"s", name.startswith((*_UNREAL, *_NAME_SERVICES))
            if is_shared and (not is_unreal or name.startswith(b"/dev/shm/")) and not name.startswith(_RUNTIMES_SHARE):
                shared.add(name)
            if is_shared or is_unreal:
                continue
            is_code, is_gone = executable == b"x", name.endswith(_GONE)
            name = name.removesuffix(_GONE)
            before = mapped.get(name)
            if before is not None and not is_gone and before.is_code >= is_code:
                # Most files are mapped several times, and the later mappings show nothing new.
                continue
            known = self._known.get(name)
            if is_gone and known is not None:
                # It was replaced after it was first seen, which its known stamp will show.
                continue
            if is_gone:
                stamp = None
            elif before is not None:
                stamp = before.stamp
            else:
                stamp = _stamp_file(name) if known is None else known.stamp
            mapped[name] = MappedFile(stamp, is_code or (before is not None and before.is_code))
        self.shared = frozenset(shared)
        return mapped


def _read_maps() -> bytes:
    try:
        with open(MAPS, "rb", buffering=0) as stream:
            text = stream.read()
            while more := stream.read():
                text += more
    except OSError:
        return b""
    return text


def _stamp_file(name: bytes) -> tuple[int, int, int]:
    try:
        state = os.stat(name)
    except OSError:
        return (0, 0, 0)
    return state.st_ino, state.st_size, state.st_mtime_ns


def _list_installed_directories() -> tuple[bytes, ...]:
    """Return the directories of installed libraries, which are the same for every worker."""
    system = ("/lib", "/lib32", "/lib64", "/usr", "/nix/store", "/gnu/store", "/opt/cuda", "/opt/rocm")
    places = [*system, sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    with suppress(Exception):
        places += [*site.getsitepackages(), site.getusersitepackages()]
    # An environment may add those of another one by a file `*.pth`.
    places += [place for place in sys.path if os.path.basename(place) in ("site-packages", "dist-packages")]
    directories = {os.path.realpath(place) for place in places} | set(places)
    return tuple(os.fsencode(place.rstrip("/")) + b"/" for place in sorted(directories) if len(place) > 1)


def _list_generated_directories() -> tuple[bytes, ...]:
    """Return the directories where compilers that run in the lane keep what they make for single configs."""
    home = os.path.expanduser("~")
    places = [os.environ.get(name, "") for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")]
    # Not by `tempfile`, which would remember its answer for user code, also in forked processes.
    places += [f"{home}/.triton", f"{home}/.cache", *glob("/tmp/torchinductor_*")]
    return tuple(os.fsencode(os.path.realpath(place)) + b"/" for place in places if place)


_INSTALLED = _list_installed_directories()
