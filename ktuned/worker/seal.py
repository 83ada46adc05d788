"""Sealing: a compiled directory becomes an artifact that is complete, described by a manifest, read-only and durable.

The order matters, because the process may be killed and the machine may lose power at any moment:

1.  Check that the directory holds all required files, and no links.
2.  Write the manifest, with the hashes of all files.
3.  Make files read-only and flush them, then the directory, to the disk.
4.  Rename the directory to its place, in one step, and flush the directories above.

So a reader finds the whole artifact or none. If another process has sealed the same key meanwhile, its artifact stays.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ktuned.ipc import DamagedArtifact, Manifest, Recipe, manifest
from ktuned.model import BackendError


def seal_artifact(
    directory: Path,
    place: Path,
    *,
    key: str,
    backend: str,
    facts: Mapping[str, Any],
    required: Iterable[str],
    decisive: Iterable[str] = (),
    recipe: Recipe | None = None,
) -> tuple[Manifest, int]:
    """Make ``directory`` the artifact of ``key`` at ``place``, durably.

    Args:
        directory: what was compiled; it is moved or removed.
        place: where the artifact belongs.
        key: the artifact's key.
        backend: the name of the backend that has compiled it.
        facts: what the compiler has reported.
        required: names of files that must be there.
        decisive: names of files whose content decides what the kernel does.
        recipe: what it was compiled from.

    Returns:
        The manifest of the artifact at ``place``, and the bytes added to the disk: 0 if the artifact existed already.

    Raises:
        BackendError: a required file is missing, or a file is a link.
        OSError: the disk is full, or fails otherwise.
    """
    _check_required_files(directory, key, backend, required)
    written = manifest.write(directory, key=key, backend=backend, facts=facts, decisive=decisive, recipe=recipe)
    size = _flush_to_disk(directory)
    standing = _move_into_place(directory, place)
    if standing is None:
        return written, size
    shutil.rmtree(directory, ignore_errors=True)
    return standing, 0


def _check_required_files(directory: Path, key: str, backend: str, required: Iterable[str]) -> None:
    missing = [name for name in required if not (directory / name).is_file()]
    # The target of a link could change later, and must not become read-only.
    links = [path.name for path in directory.rglob("*") if path.is_symlink()]
    for names, what in ((missing, "does not hold"), (links, "must hold itself, not link to,")):
        if names:
            raise BackendError(
                f"artifact {key} of the backend {backend!r} {what} {', '.join(names)}",
                hint="report it to the plugin's authors",
            )


def _flush_to_disk(directory: Path) -> int:
    size = 0
    for path in directory.rglob("*"):
        if not path.is_dir():
            path.chmod(path.stat().st_mode & ~0o222)
            size += path.stat().st_size
        _sync_to_disk(path)
    _sync_to_disk(directory)
    return size


def _move_into_place(directory: Path, place: Path) -> Manifest | None:
    """Rename ``directory`` to ``place``; if an artifact is there already, return its manifest instead."""
    place.parent.mkdir(mode=0o700, exist_ok=True)
    while True:
        try:
            directory.rename(place)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
        else:
            _sync_to_disk(place.parent)
            _sync_to_disk(place.parent.parent)
            return None
        try:
            return manifest.read(place)
        except DamagedArtifact:
            _remove_damaged(place, directory.with_name(f"{directory.name}.damaged"))


def _remove_damaged(place: Path, aside: Path) -> None:
    """Remove a damaged artifact. It is renamed first, so that no reader finds a part of it."""
    try:
        place.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
