"""Work that waits for a quiet machine: what was measured beside other programs is measured again."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

LOOK_S: Final = 60.0
"""Interval of the looks at the machine's load, which is an average over a minute."""

MOST_PAUSE_S: Final = 24 * 3600.0
"""After each piece of work the pause doubles, up to this: a machine that is never quiet is not kept busy."""

QUIET_LOAD: Final = 0.1
"""Load of each core below which a machine is quiet."""

Work = Callable[[], Awaitable[bool]]
"""Does what there is to do, and returns whether there was anything."""


class QuietWork:
    """Does some work whenever no job waits or runs and the machine is quiet."""

    def __init__(self, works: Sequence[Work], *, is_working: Callable[[], bool], look_s: float = LOOK_S) -> None:
        self._works = works
        self._is_working = is_working
        self._look_s = look_s

    async def run_until_cancelled(self) -> None:
        """Look at the machine's load periodically."""
        pause_s = self._look_s
        while True:
            await anyio.sleep(pause_s)
            if self._is_working() or os.getloadavg()[0] >= QUIET_LOAD * (os.cpu_count() or 1):
                continue
            had_work = [await work() for work in self._works]
            pause_s = min(2 * pause_s, MOST_PAUSE_S) if any(had_work) else self._look_s
