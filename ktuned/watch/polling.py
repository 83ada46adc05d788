"""Watching by looking again: for file systems that tell nothing of changes made elsewhere, and without inotify."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from ktuned.catalog import find_kernel_files

Sight = tuple[int, int, int]
"""What a look at a file shows without reading it: its number, its size, when it was changed (ns)."""


@dataclass(frozen=True)
class Snapshot:
    """What the kernel files of some roots, and all that kernels depend on, looked like."""

    roots: tuple[str, ...]
    sights: dict[str, Sight]

    @classmethod
    def take(cls, roots: Iterable[str], files: Iterable[str]) -> Self:
        """Look at every kernel file below ``roots`` and at ``files``. Blocks as long as the disk does."""
        roots = tuple(roots)
        found = {path for root in roots for path in find_kernel_files(root)}
        sights = {path: sight for path in found | set(files) if (sight := _look(path)) is not None}
        return cls(roots, sights)

    def differences(self, before: Snapshot) -> set[str]:
        """Return the paths that came, went or changed."""
        return {path for path in {*self.sights, *before.sights} if self.sights.get(path) != before.sights.get(path)}


def _look(path: str) -> Sight | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
