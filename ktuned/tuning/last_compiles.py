"""The last compiles of a job, begun so that all slots end at about the same time. No IO.

That is Graham's rule ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17, 1969): the longest first.
Here most configs keep the order in which they are promising: the rule holds for the last of them, and for the few whose
compile takes longer than all that comes after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from ktuned.model import KnownConfig

LAST_OF_SLOT = 2
"""Of so many last configs for each slot the longest begin first: with only one each, all slots end with long ones, and
what was expected of a single one is often wrong. More gain nothing, and the order is the strategy's no longer."""


def begun_in_time(configs: Sequence[KnownConfig], slots: int, behind_s: float = 0.0) -> list[KnownConfig]:
    """Return configs in their order, but for those whose compile would end after all others: each comes as much earlier
    as it must.

    ``behind_s`` is what the compiles of those that come after all of them take.
    """
    window_s = LAST_OF_SLOT * sum(config.compile_s for config in configs) / max(1, len(configs))
    placed: deque[KnownConfig] = deque()
    late: list[tuple[float, int]] = []

    def place(number: int) -> None:
        nonlocal behind_s
        placed.appendleft(configs[number])
        behind_s += configs[number].compile_s

    for number in reversed(range(len(configs))):
        while late and late[0][0] * slots <= behind_s:
            place(heappop(late)[1])
        if configs[number].compile_s <= max(window_s, behind_s / slots):
            place(number)
        else:
            heappush(late, (configs[number].compile_s, number))
    while late:
        place(heappop(late)[1])
    return list(placed)
