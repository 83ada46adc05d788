"""What makes a compiled directory fit to be an artifact; the daemon has only to move it into place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ktuned import manifest
from ktuned.errors import BackendError


def seal(
    directory: Path,
    *,
    key: str,
    backend: str,
    facts: Mapping[str, Any],
    required: Iterable[str],
    decisive: Iterable[str] = (),
) -> int:
    """Check that all is there, write the manifest, make every file read-only and durable; return the bytes of all.

    Raises:
        BackendError: a required file is missing, or a file is a link.
        OSError: the disk is full, or fails otherwise.
    """
    _check_complete(directory, key, backend, required)
    manifest.write(directory, key=key, backend=backend, facts=facts, decisive=decisive)
    return _make_durable(directory)


def _check_complete(directory: Path, key: str, backend: str, required: Iterable[str]) -> None:
    missing = [name for name in required if not (directory / name).is_file()]
    # What lies outside could change later, and must not become read-only.
    links = [path.name for path in directory.rglob("*") if path.is_symlink()]
    for names, what in ((missing, "does not hold"), (links, "must hold itself, not link to,")):
        if names:
            raise BackendError(
                f"artifact {key} of the backend {backend!r} {what} {', '.join(names)}",
                hint="report it to the plugin's authors",
            )


def _make_durable(directory: Path) -> int:
    size = 0
    for path in directory.rglob("*"):
        if not path.is_dir():
            path.chmod(path.stat().st_mode & ~0o222)
            size += path.stat().st_size
        _sync(path)
    _sync(directory)
    return size


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
