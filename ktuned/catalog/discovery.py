"""Discovery of kernel files: the directories of a tree that are searched, and the kernel files in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from ktuned.catalog.catalog import is_below
from ktuned.ipc import read_regular_file
from ktuned.model import UsageError

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
"""Never searched, like hidden directories and virtual environments: they contain builds and installed code."""

MAX_DIRECTORIES = 50_000
"""Most directories of a root: more than any project has, and a walk of a few seconds. Each needs one of the user's some
hundred thousand watches."""

_BACKEND = re.compile(rb"""\bbackend\s*=\s*["']([A-Za-z_][A-Za-z0-9_]*)["']""")

_GLANCED_FILES = 16
_GLANCED_BYTES = 1 << 16
"""Bytes that are read of a file to guess its backend. Reading more would delay the inspection."""


def is_kernel_file(name: str) -> bool:
    """Return whether a file is a kernel file by its name."""
    base = os.path.basename(name)
    return base.startswith("tune_") and base.endswith(".py")


def may_hold_kernel_files(name: str) -> bool:
    """Return whether directories of this name may hold kernel files."""
    return not name.startswith(".") and name not in SKIPPED_DIRECTORIES


class Listing(NamedTuple):
    """The names in a directory: its files, and the directories that are searched."""

    directory: str
    files: list[str]
    directories: list[str]


def walk_directories(top: str) -> Iterator[Listing]:
    """Yield each directory that may hold kernel files, the upper ones first.

    A link to a directory outside the tree is followed, once. A link to one inside is not, because that directory is
    found anyway. Blocks as long as the disk does.
    """
    real_top = os.path.realpath(top)
    followed: set[str] = set()
    places = [top]
    while places:
        place = places.pop()
        try:
            with os.scandir(place) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name == "pyvenv.cfg" for entry in found):
            continue
        listing = Listing(place, [], [])
        below = []
        for entry in found:
            if not _is_directory(entry):
                listing.files.append(entry.name)
            elif may_hold_kernel_files(entry.name):
                listing.directories.append(entry.name)
                real = os.path.realpath(entry.path) if entry.is_symlink() else ""
                if not real or not (is_below(real, real_top) or real in followed):
                    followed.add(real)
                    below.append(entry.path)
        yield listing
        places += reversed(below)


def check_extent(top: str, limit: int = MAX_DIRECTORIES) -> None:
    """Refuse a tree that is too large to watch, such as a whole disk or ``/proc``. Blocks as long as the disk does.

    Raises:
        UsageError: it has more directories than ``limit``.
    """
    if next(islice(walk_directories(top), limit, None), None) is not None:
        raise UsageError(
            f"{top} has more than {limit:,} directories", hint="name the directory that holds your kernels"
        )


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def find_kernel_files(directory: str, root: str | None = None) -> list[str]:
    """Return every kernel file at or below a path, sorted. Blocks as long as the disk does.

    A link to a kernel file below ``root`` (by default ``directory``) is left out, because the file itself is found.
    """
    top = os.path.realpath(root or directory)
    if os.path.isfile(directory):
        found = [directory] if is_kernel_file(directory) else []
    else:
        names = ((place, name) for place, files, _ in walk_directories(directory) for name in files)
        found = [os.path.join(place, name) for place, name in names if is_kernel_file(name)]
    return sorted(path for path in found if not _links_to_found_file(path, top))


def _links_to_found_file(path: str, top: str) -> bool:
    if not os.path.islink(path):
        return False
    real = os.path.realpath(path)
    return real != path and is_below(real, top) and is_kernel_file(real)


def guess_backend(files: Iterable[str]) -> str:
    """Return the backend that kernel files name in their text, before any is imported; empty if that is not clear.

    It is a guess that only saves time: importing a compiler takes seconds. Blocks as long as the disk does.
    """
    names: set[bytes] = set()
    for file in islice(files, _GLANCED_FILES):
        with suppress(OSError):
            names.update(_BACKEND.findall(read_regular_file(file, _GLANCED_BYTES)))
    return names.pop().decode() if len(names) == 1 else ""
