"""Projects on a node: the files that a daemon lists, by content, in a directory that stands for the root.

The directory repeats the root's absolute path below a private one, so that files outside the root have their place too.
A file's bytes come as a parcel, are checked by their digest, and become the file. A layout is made as a whole: while
any bytes are missing, nothing changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ktuned.ipc import make_absolute
from ktuned_ray import node_calls, parcels


class NodeLayouts:
    """The projects below a keeper's directory, ``home``."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._files: dict[Path, str] = {}
        """The digest of each file that was laid out, by its place."""
        self._files_below: dict[str, set[Path]] = {}

    def root_path(self, project: str, root: str) -> Path:
        """Return the directory that stands for a project's root."""
        identity = hashlib.sha256(f"{project}\0{root}".encode()).hexdigest()[:16]
        return Path(f"{self._home}/projects/{identity}{os.path.normpath(root)}")

    def lay_out(self, call: node_calls.LayOut) -> tuple[str, ...]:
        """Lay out exactly the call's files; if the bytes of some are missing, only return their digests. Blocks."""
        top = str(self.root_path(call.project, call.root))
        private = top.removesuffix(os.path.normpath(call.root))
        wanted: dict[Path, str] = {}
        for name, digest in call.files.items():
            path = make_absolute(name, top)
            # With more `..` than there are directories, a path would lead out of the private one.
            if path.startswith(f"{private}/") and digest:
                wanted[Path(path)] = digest
        known = {digest: place for place, digest in self._files.items()}
        changed = {place: digest for place, digest in wanted.items() if self._files.get(place) != digest}
        missing = {digest for digest in changed.values() if digest not in known and not self._has_parcel(digest)}
        if missing:
            return tuple(sorted(missing))
        for directory in (top, *(make_absolute(name, top) for name in call.directories)):
            if directory.startswith(f"{private}/"):
                os.makedirs(directory, exist_ok=True)
        # Read all contents before any file is replaced, because a renamed file's bytes are at its earlier place.
        contents = {digest: self._read_content(digest, known) for digest in set(changed.values())}
        executable = {make_absolute(name, top) for name in call.executable}
        for place, digest in changed.items():
            parcels.unpack_file(contents[digest], place)
            place.chmod(0o755 if str(place) in executable else 0o644)
            self._files[place] = digest
        for place in self._files_below.get(top, set()) - wanted.keys():
            place.unlink(missing_ok=True)
            self._files.pop(place, None)
        self._files_below[top] = set(wanted)
        shutil.rmtree(self._home / "files", ignore_errors=True)
        return ()

    def _parcel_path(self, digest: str) -> Path:
        return parcels.parcel_path(f"file-{digest}", self._home)

    def _has_parcel(self, digest: str) -> bool:
        """Return whether a parcel is there with the bytes that its name promises; a wrong one is removed."""
        place = self._parcel_path(digest)
        try:
            if hashlib.sha256(place.read_bytes()).hexdigest() == digest:
                return True
            place.unlink(missing_ok=True)
        except OSError:
            return False
        return False

    def _read_content(self, digest: str, known: Mapping[str, Path]) -> bytes:
        place = known.get(digest)
        return (self._parcel_path(digest) if place is None else place).read_bytes()
