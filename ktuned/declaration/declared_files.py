"""Files that a kernel declares with ``depends=``, because their reads cannot be observed: they count by their contents.

A pattern also depends on the names in the directories where it looks: a new file may match it.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path

from ktuned.declaration.declared_kernel import Kernel
from ktuned.dependencies import OBSERVER
from ktuned.ipc import Untrusted, normalize_path, stamp
from ktuned.model import FrozenStruct

MAX_FILES = 4_000
"""Most files that one kernel may declare: each survey looks at all of them."""


class DeclaredFiles(FrozenStruct):
    """The part of each pattern in the kernel's digest, and the files and directories with their stamps."""

    parts: dict[str, str]
    files: dict[Path, str]


def find_declared_files(kernel: Kernel) -> DeclaredFiles:
    """Return the files that match a kernel's patterns, which are relative to its file.

    Raises:
        KernelFileError: a pattern matches too many files, or another user could have written one of them.
    """
    home = kernel.file.parent
    parts: dict[str, str] = {}
    files: dict[Path, str] = {}
    for pattern in kernel.depends:
        matches = sorted(glob.glob(pattern, root_dir=home, recursive=True))
        paths = {name: normalize_path(home / name) for name in matches}
        if len(paths) > MAX_FILES:
            raise kernel.site.make_error(f"depends: {pattern!r} matches more than {MAX_FILES} files")
        try:
            OBSERVER.check_trust(paths.values())
        except Untrusted as error:
            raise kernel.site.make_error(error.message, hint=error.hint) from error
        found = {name: stamp(path) for name, path in paths.items() if path.is_file()}
        parts[f"depends {pattern}"] = "\n".join(f"{name} {digest}" for name, digest in found.items())
        files |= {paths[name]: digest for name, digest in found.items()}
        files |= {place: stamp(place) for place in _find_watched_places(home, pattern, list(paths.values()))}
    return DeclaredFiles(parts, files)


def _find_watched_places(home: Path, pattern: str, matches: list[Path]) -> set[Path]:
    """Return a plain name's file, or the directories in which another match of a pattern may appear."""
    if not glob.has_magic(pattern):
        return {normalize_path(home / pattern)}
    plain = pattern.split("/")[: next(at for at, part in enumerate(pattern.split("/")) if glob.has_magic(part))]
    top = normalize_path(home.joinpath(*plain)) if not pattern.startswith("/") else Path("/", *plain)
    below = {directory for path in matches for directory in path.parents if directory.is_relative_to(top)}
    return {top, *below, *(path for path in matches if os.path.isdir(path))}
