"""Work that waits for a quiet machine: configs that were measured beside other programs are measured again.

The load does not matter to the other work that is done later, so that work does not wait here:

- What needs a lane is a job of the priority ``VERIFY``, and the queue decides when it runs: compiles that were given up
  for time, winners of an older toolchain. Such a job is in the store.
- A repetition is due after an interval, also beside jobs (:mod:`ktuned.scheduling.repetition`).

Nothing is remembered here: each look asks the store what was measured beside other programs.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

import anyio

LOOK_S = 60.0
"""Interval of the looks at the machine's load, which is an average over a minute."""

MOST_PAUSE_S = 24 * 3600.0
"""After each piece of work the pause doubles, up to this: a machine that is never quiet is not kept busy."""

QUIET_LOAD = 0.1
"""Load of each core below which a machine is quiet."""

Work = Callable[[], Awaitable[bool]]
"""Does a piece of work, and returns whether there was anything to do."""


async def work_in_quiet(works: Sequence[Work], *, is_working: Callable[[], bool], look_s: float = LOOK_S) -> None:
    """Until cancelled, do pieces of work whenever no job ``is_working`` and the machine is quiet."""
    pause_s = look_s
    while True:
        await anyio.sleep(pause_s)
        if is_working() or os.getloadavg()[0] >= QUIET_LOAD * (os.cpu_count() or 1):
            continue
        had_work = [await work() for work in works]
        pause_s = min(2 * pause_s, MOST_PAUSE_S) if any(had_work) else look_s
