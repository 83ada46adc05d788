"""The order in which a job tries its configs: promising ones first, and long compiles in time. No IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from ktuned.model import Config, Outcome, canonical
from ktuned.store import KnownConfig, Winner

MAX_NEAR = 8
"""Most configs of other problems and devices that are tried first: a small part of any budget."""

LAST_OF_SLOT = 2
"""How many of the last configs, for each slot, start by their expected compile time, the longest first. With only one
for each slot, all slots would end with long compiles, and a single expectation is often wrong. More than two gain
nothing, and undo the strategy's order."""


class TrialOrder(msgspec.Struct, frozen=True):
    """The order in which a job tries its configs.

    Attributes:
        first: Configs to try before those that the strategy proposes.
        last: Configs to try after those.
    """

    first: tuple[Config, ...]
    last: tuple[Config, ...]


def order_configs(
    incumbent: Config | None,
    default: Config | None,
    past: Sequence[KnownConfig],
    near: Sequence[Config] = (),
    failed_here: Sequence[KnownConfig] = (),
    served: Sequence[Config] = (),
) -> TrialOrder:
    """Return the most promising order, by results of earlier contexts.

    First come, in this order:

    1. the ``incumbent`` and the configs ``served`` to lookups, so that lookups soon have a fresh answer that is not
       slower; then the ``default``, to which speed-ups are relative;
    2. the measured configs of the ``past`` in their order (the newest context first, each context's fastest first); if
       there are none, the ``near`` configs: winners of near problems and of other devices;
    3. the configs that ``failed_here``, in exactly this context. They cost nothing, but count towards the budget. So a
       job that is requested again has nothing left to do, whatever its strategy would propose now.

    Last come the configs of the ``past`` that were hopelessly slow, and finally those that failed.
    """
    known: dict[str, KnownConfig] = {}
    for entry in past:
        known.setdefault(entry.text, entry)
    first = {canonical(config): config for config in (incumbent, *served, default) if config is not None}
    measured = {text: entry.config for text, entry in known.items() if entry.outcome is Outcome.MEASURED}
    first |= measured or {canonical(config): config for config in near}
    first |= {entry.text: entry.config for entry in failed_here}
    failed = [(text, entry) for text, entry in known.items() if text not in first]
    failed.sort(key=lambda pair: pair[1].outcome is not Outcome.SLOWER)
    return TrialOrder(tuple(first.values()), tuple(entry.config for _, entry in failed))


def choose_near_configs(winners: Sequence[Winner], best_of_nearest: Sequence[Config]) -> list[Config]:
    """Return configs to begin with: the nearest winner, the next best of its key, then the other winners."""
    configs = [winner.config for winner in winners]
    distinct = {canonical(config): config for config in [*configs[:1], *best_of_nearest, *configs[1:]]}
    return list(distinct.values())[:MAX_NEAR]


def order_by_compile_time(configs: Sequence[KnownConfig], slots: int, behind_s: float = 0.0) -> list[KnownConfig]:
    """Return configs in their order, except that long compiles start early enough to end with the others.

    Graham's rule ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17, 1969) starts the longest first,
    so that all slots end at about the same time. Here most configs keep their order, the most promising first. The rule
    is applied only to the last configs, and to the few whose compile takes longer than all those after it.

    Args:
        configs: The configs, the most promising first.
        slots: The number of compile slots.
        behind_s: The total compile time of configs that come after all of these.
    """
    window_s = LAST_OF_SLOT * sum(config.compile_s for config in configs) / max(1, len(configs))
    placed: deque[KnownConfig] = deque()
    postponed: list[tuple[float, int]] = []

    def place_config(number: int) -> None:
        nonlocal behind_s
        placed.appendleft(configs[number])
        behind_s += configs[number].compile_s

    for number in reversed(range(len(configs))):
        while postponed and postponed[0][0] * slots <= behind_s:
            place_config(heappop(postponed)[1])
        if configs[number].compile_s <= max(window_s, behind_s / slots):
            place_config(number)
        else:
            heappush(postponed, (configs[number].compile_s, number))
    while postponed:
        place_config(heappop(postponed)[1])
    return list(placed)
