"""The files that this process has imported, and whether one of them is another one on the disk now.

A front end serves a library for hours. What it has imported cannot be taken back, so that after an upgrade, or an edit,
it begins again as a fresh process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import monotonic

LOOK_EVERY_S = 0.2
"""Interval between two looks: 3,000 modules take 5 ms, a tenth of what a config takes here."""

_Sight = tuple[int, int, int, int]


class ImportedFiles:
    """The sights of all modules' files, from when they were first seen here; ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Sight] = {}
        self._looked_at = -LOOK_EVERY_S

    def record_imports(self) -> None:
        """Take in the modules that were imported since this was last called."""
        for module in list(sys.modules.values()):
            # Not by attribute: a module may import what it is asked for.
            file = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(file, str) and file not in self._seen:
                sight = _read_sight(file)
                if sight is not None:
                    self._seen[file] = sight

    def find_changed_file(self) -> str:
        """Return a file that is not what was imported, or nothing; one that is gone leaves what was imported true."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return ""
        self._looked_at = now
        return next((file for file, seen in self._seen.items() if _read_sight(file) not in (None, seen)), "")


def _read_sight(file: str) -> _Sight | None:
    try:
        state = os.stat(file)
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
