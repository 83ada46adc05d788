"""Files as they travel to a node: trees of paths with digests, and their contents in Ray's object store.

A *tree* is a project or an artifact. A node gets the paths with their digests, and those contents that its
earlier state of the tree lacks. Contents go into the object store once, in groups, and each node that needs them gets
them from there.

A project's tree has all regular files below its root, up to limits, except those of editors, version control and
package managers; and every file that a kernel's context lists, wherever it is. It is taken again only if it lacks a
content that a request lists. If a file is saved meanwhile, the node finds a different digest, and the work is repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray

from ktuned.ipc import DIRECTORY, LISTING, locate_artifact, make_absolute, manifest
from ktuned.model import FrozenStruct

MAX_FILES: Final = 8192
MAX_FILE_BYTES: Final = 32 << 20
MAX_BYTES: Final = 256 << 20
"""Limits of the files that travel in addition to a context's own: enough for sources and small data, but not for
checkpoints and build trees."""

GROUP_BYTES: Final = 4 << 20
INLINE_BYTES: Final = 64 << 10
"""Contents are put into the object store in groups of this size; a small group travels with the call instead."""

KEPT_BYTES: Final = 512 << 20
"""Most bytes that stay in the object store for the next node that needs them."""

MAX_KNOWN: Final = 4 * MAX_FILES
"""Most files, and most artifacts, whose digests are remembered; others are read again."""

_LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
"""Directories that are never part of a project's code. Nor are those whose names begin with a dot."""


class Tree(FrozenStruct, eq=False):
    """Files by their paths below the tree's directory on a node, and what is there besides.

    Attributes:
        files: The SHA-256 of each file.
        top: The directory on this machine that stands for the tree's directory.
        executable: The files that may be run.
        directories: Directories that exist even if no file is in them.
        bytes: The size of all files.
    """

    files: Mapping[str, str]
    top: str
    executable: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    bytes: int = 0


class Files:
    """The files of this machine that requests name, and the object store's references to their contents."""

    def __init__(self, artifacts: Path) -> None:
        self._artifacts = artifacts
        self._projects: dict[str, Tree] = {}
        self._sealed: dict[str, tuple[tuple[int, int], Tree]] = {}
        self._digests: dict[str, tuple[tuple[int, ...], str]] = {}
        """The digest of each file that was read, with how it looked then."""
        self._objects: dict[str, Any] = {}
        """By digest, what holds the content: a reference to a group in the object store, or a small group itself."""
        self._put_bytes = 0

    def list_trees(
        self, project: tuple[str, str], digests: Mapping[str, str] | None, keys: Iterable[str]
    ) -> dict[str, Tree]:
        """Return the trees that a request needs, by their directories on a node.

        Args:
            project: The directory on a node, and the root here.
            digests: The contents that the project must have; None if the request names no project.
            keys: The artifacts.
        """
        found = {}
        if digests is not None:
            directory, root = project
            held = {name: digest for name, digest in digests.items() if not _is_directory(digest)}
            tree = self._projects.get(root)
            if tree is None or any(
                tree.files.get(make_absolute(name, root)[1:], "") != digest for name, digest in held.items()
            ):
                tree = self._projects[root] = self._take_snapshot(root, digests)
            found[directory] = tree
        for key in keys:
            with suppress(OSError):
                found[str(locate_artifact(Path("artifacts"), key))] = self._read_artifact(key)
        return found

    def _read_artifact(self, key: str) -> Tree:
        top = locate_artifact(self._artifacts, key)
        state = os.stat(top)
        sight = state.st_ino, state.st_mtime_ns
        known = self._sealed.get(key)
        if known is None or known[0] != sight:
            files, size = {}, 0
            for at, _, names in os.walk(top):
                for name in names:
                    content = Path(at, name).read_bytes()
                    size += len(content)
                    files[os.path.relpath(f"{at}/{name}", top)] = hashlib.sha256(content).hexdigest()
            if len(self._sealed) >= MAX_KNOWN:
                self._sealed.clear()
            known = self._sealed[key] = sight, Tree(files, str(top), bytes=size)
        return known[1]

    def _take_snapshot(self, root: str, listed: Iterable[str]) -> Tree:
        files: dict[str, str] = {}
        executable, directories, total = [], [], 0
        for place in (*self._walk_files(root, directories), *(make_absolute(name, root) for name in listed)):
            name = place[1:]
            with suppress(OSError):
                state = os.stat(place)
                if name in files or not stat.S_ISREG(state.st_mode):
                    continue
                files[name] = self._read_digest(place, state)
                total += state.st_size
                if state.st_mode & 0o111:
                    executable.append(name)
        return Tree(files, "/", tuple(executable), (root[1:], *directories), total)

    def _walk_files(self, root: str, found: list[str]) -> Iterator[str]:
        """Yield the files of a root that travel, within the limits; add its directories to ``found``."""
        count = total = 0
        for directory, directories, files in os.walk(root):
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            found += (f"{directory}/{name}"[1:] for name in directories)
            directories[:] = [name for name in directories if name not in _LEFT_OUT]
            for name in sorted(files):
                place = os.path.join(directory, name)
                with suppress(OSError):
                    size = os.stat(place).st_size
                    if size <= MAX_FILE_BYTES and count < MAX_FILES and total + size <= MAX_BYTES:
                        count, total = count + 1, total + size
                        yield place

    def _read_digest(self, place: str, state: os.stat_result) -> str:
        sight = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        known = self._digests.get(place)
        if known is None or known[0] != sight:
            if len(self._digests) >= MAX_KNOWN:
                self._digests.clear()
            known = self._digests[place] = sight, hashlib.sha256(Path(place).read_bytes()).hexdigest()
        return known[1]

    def provide_contents(self, changes: Iterable[tuple[str, str]]) -> tuple[list[Any], set[str]]:
        """Return what holds the contents of changed files: references to groups, or small groups themselves.

        Args:
            changes: The place of each file on this machine, and its digest.

        Returns:
            What holds the contents, and the digests of files that were replaced meanwhile, which are left out.
        """
        group: dict[str, bytes] = {}
        size = 0
        needed: dict[str, Any] = {}
        missing = set()
        for place, digest in changes:
            needed[digest] = None
            if digest in self._objects or digest in group:
                continue
            content = b""
            with suppress(OSError):
                content = Path(place).read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                missing.add(digest)
                self._projects.clear()
                continue
            if group and size + len(content) > GROUP_BYTES:
                self._put_group(group, size)
                group, size = {}, 0
            group[digest] = content
            size += len(content)
        self._put_group(group, size)
        found = {id(held): held for digest in needed if (held := self._objects.get(digest)) is not None}
        if self._put_bytes > KEPT_BYTES:
            self.forget_objects()
        return list(found.values()), missing

    def _put_group(self, group: dict[str, bytes], size: int) -> None:
        held = group if size <= INLINE_BYTES else ray.put(group)
        self._objects |= dict.fromkeys(group, held)
        self._put_bytes += size

    def forget_objects(self) -> None:
        """Forget what is in the object store: it is full, or has lost some."""
        self._objects.clear()
        self._put_bytes = 0

    def seal_artifact(self, key: str, files: Mapping[str, bytes]) -> int:
        """Check an artifact that was compiled on a node, and move it into its place; return the bytes added here.

        Raises:
            manifest.DamagedArtifact: it is not what its manifest says, or names files outside.
        """
        place = locate_artifact(self._artifacts, key)
        if place.exists():
            return 0
        staging = place.with_name(f".{key}.{os.getpid()}")
        try:
            for name, content in files.items():
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    raise manifest.DamagedArtifact(f"it names the file {name[:200]!r}")
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o444)
            manifest.verify(staging, required=())
            with suppress(OSError):
                # An equal artifact may have been sealed meanwhile.
                staging.rename(place)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return sum(map(len, files.values()))


def _is_directory(digest: str) -> bool:
    return digest == DIRECTORY or digest.startswith(LISTING)


def lay_out(top: Path, tree: Tree, before: Mapping[str, str], contents: Mapping[str, bytes]) -> dict[str, str]:
    """Make a tree's directory on a node hold the tree's files instead of those ``before``; return the files it holds.

    A file whose content is missing is left out.
    """
    held = {name: digest for name, digest in tree.files.items() if digest in contents or before.get(name) == digest}
    for name in before.keys() - held.keys():
        (top / name).unlink(missing_ok=True)
    for name in tree.directories:
        (top / name).mkdir(parents=True, exist_ok=True)
    for name, digest in held.items():
        if before.get(name) == digest:
            continue
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside the old file, because a worker may have that one mapped.
        staged = path.with_name(f".{path.name}.part")
        staged.write_bytes(contents[digest])
        staged.chmod(0o755 if name in tree.executable else 0o644)
        staged.rename(path)
    return held


def read_files(top: Path) -> dict[str, bytes]:
    """Return the contents of all files below a directory, by their relative paths."""
    return {
        os.path.relpath(f"{at}/{name}", top): Path(at, name).read_bytes()
        for at, _, names in os.walk(top)
        for name in names
    }
