"""The order in which a job tries its configs: what is promising first, and the longest compiles in time. No IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from ktuned.model import Config, EarlierSearch, KnownConfig, Outcome, Winner, canonical

MAX_NEAR = 8
"""Configs of other problems and devices that are tried first: a fraction of any budget."""

LAST_OF_SLOT = 2
"""Of so many last configs for each slot the longest begin first: with only one each, all slots end with long ones, and
what was expected of a single one is often wrong. More gain nothing, and the order is the strategy's no longer."""


class TrialOrder(msgspec.Struct, frozen=True):
    """The order in which a job tries its configs: ``first``, then those that the strategy asks for, then ``last``.

    ``earlier`` are the searches of similar keys, which the strategy may learn from, the most similar first.
    """

    first: tuple[Config, ...]
    last: tuple[Config, ...]
    earlier: tuple[EarlierSearch, ...] = ()


def order_configs(
    seated: Config | None,
    default: Config | None,
    past: Sequence[KnownConfig],
    near: Sequence[Config] = (),
    settled: Sequence[KnownConfig] = (),
    served: Sequence[Config] = (),
    lead: Sequence[Config] = (),
) -> TrialOrder:
    """Return the most promising order, by results of earlier contexts (``past``, the newest first). No IO.

    The ``lead`` comes before all. Then the winner and the configs ``served`` to lookups so far, so that these soon get
    a fresh one that is no slower; then the default, which is the base of speed-ups; then measured configs, the fastest
    of the newest context first. Hopelessly slow ones come after the unknown ones, failed ones last of all. Where
    nothing was measured yet, ``near`` follows the default: the winners of near problems and of other devices.
    ``settled`` are configs whose failure in this very context is known. Like its measured ones they cost nothing and
    count towards the budget, so that a job that is asked for again has no more to do, whichever configs its strategy
    would choose now.
    """
    known: dict[str, KnownConfig] = {}
    for entry in past:
        known.setdefault(entry.text, entry)
    first = {canonical(config): config for config in (*lead, seated, *served, default) if config is not None}
    measured = {text: entry.config for text, entry in known.items() if entry.outcome is Outcome.MEASURED}
    first |= measured or {canonical(config): config for config in near}
    first |= {entry.text: entry.config for entry in settled}
    failed = [(text, entry) for text, entry in known.items() if text not in first]
    failed.sort(key=lambda pair: pair[1].outcome is not Outcome.SLOWER)
    return TrialOrder(tuple(first.values()), tuple(entry.config for _, entry in failed))


def choose_near_configs(winners: Sequence[Winner], best_of_nearest: Sequence[Config]) -> list[Config]:
    """Return the configs to begin with: the nearest winner's, the next best of its key, the other winners'. No IO."""
    configs = [winner.config for winner in winners]
    distinct = {canonical(config): config for config in [*configs[:1], *best_of_nearest, *configs[1:]]}
    return list(distinct.values())[:MAX_NEAR]


def order_by_compile_time(configs: Sequence[KnownConfig], slots: int, behind_s: float = 0.0) -> list[KnownConfig]:
    """Return configs in their order, but those whose compile would end after all others as much earlier as they must.

    That is Graham's rule ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17, 1969): the longest
    first, so that all slots end at about the same time. Here most configs keep the order in which they are promising:
    the rule holds for the last of them, and for the few whose compile takes longer than all that comes after them.
    ``behind_s`` is what the compiles of those that come after all of them take.
    """
    window_s = LAST_OF_SLOT * sum(config.compile_s for config in configs) / max(1, len(configs))
    placed: deque[KnownConfig] = deque()
    late: list[tuple[float, int]] = []

    def place_config(number: int) -> None:
        nonlocal behind_s
        placed.appendleft(configs[number])
        behind_s += configs[number].compile_s

    for number in reversed(range(len(configs))):
        while late and late[0][0] * slots <= behind_s:
            place_config(heappop(late)[1])
        if configs[number].compile_s <= max(window_s, behind_s / slots):
            place_config(number)
        else:
            heappush(late, (configs[number].compile_s, number))
    while late:
        place_config(heappop(late)[1])
    return list(placed)
