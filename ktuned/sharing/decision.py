"""The rules for what others share: what is tried here, when that saves the search, and what is published. No IO.

Another daemon's winner is only a good guess, even for the same context: clocks, cooling and load differ. So it is never
served before it was compiled, checked and timed here. If it costs here what it costs there, no search is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from ktuned.model import Config, canonical, median
from ktuned.sharing.shared_store import SharedWinner

HOLDS_WITHIN: Final = 1.10
"""A shared config saves the search if its cost here is that where it was found, within this factor either way."""

BETTER_BY: Final = 0.97
"""A shared config competes with a fresh winner of ours if it costs less than this share of ours; the rest is noise."""

MAX_CANDIDATES: Final = 32
"""Most winners of one context that are considered, the newest: further ones only repeat the same few configs."""


class Candidate(msgspec.Struct, frozen=True):
    """A config that others found best in one context, and its typical cost there."""

    config: Config
    cost: float


def rank_candidates(shared: Iterable[SharedWinner]) -> list[Candidate]:
    """Return the configs of one context's shared winners, the cheapest first.

    The cost of a config that several have measured is the median, so that one bad clock decides nothing.
    """
    newest = sorted(shared, key=lambda winner: winner.decided, reverse=True)[:MAX_CANDIDATES]
    groups: dict[str, list[SharedWinner]] = {}
    for winner in newest:
        groups.setdefault(canonical(winner.config), []).append(winner)
    found = [Candidate(group[0].config, median(winner.cost for winner in group)) for group in groups.values()]
    return sorted(found, key=lambda candidate: (candidate.cost, canonical(candidate.config)))


def cost_holds(shared_cost: float, cost: float | None) -> bool:
    """Return whether a shared config costs here what it costs there; ``cost`` is ``None`` if it was not measured.

    If it is far faster here, the other daemon's search was under other conditions, and says nothing either.
    """
    return cost is not None and shared_cost / HOLDS_WITHIN <= cost <= HOLDS_WITHIN * shared_cost


class Action(Enum):
    """The use of a shared candidate for a key."""

    NOTHING = auto()
    VERIFY = auto()
    COMPETE = auto()


class OwnWinner(msgspec.Struct, frozen=True):
    """Our own winner of a key: its cost, and whether it was measured in the present context."""

    cost: float | None
    is_current: bool


def choose_action(candidate: Candidate, ours: OwnWinner | None, *, is_tried: bool, is_open: bool) -> Action:
    """Decide what to do with a candidate of the present context.

    ``is_tried`` says that its config has an outcome here, in this very context; ``is_open`` that a job works on the
    key. Without a winner of the present context the candidate is verified. Otherwise it competes with the winner, if it
    is clearly better where it was found.
    """
    if is_open or is_tried:
        return Action.NOTHING
    if ours is None or not ours.is_current:
        return Action.VERIFY
    return Action.COMPETE if ours.cost is not None and candidate.cost < BETTER_BY * ours.cost else Action.NOTHING


class WinnerFacts(msgspec.Struct, frozen=True):
    """What decides whether a winner of ours may be published."""

    is_final: bool
    is_current: bool
    is_imported: bool
    is_withheld: bool


def is_published(decided: WinnerFacts, cost: float, config: Config, known: Sequence[Candidate]) -> bool:
    """Decide whether a winner of ours is worth publishing; ``known`` are the context's candidates so far.

    It must come from a final round in the present context. An imported winner was not measured here, and a withheld one
    was tuned with ``--no-share``. A config whose cost is known already is no news.
    """
    if not (decided.is_final and decided.is_current) or decided.is_imported or decided.is_withheld:
        return False
    text = canonical(config)
    same = next((candidate for candidate in known if canonical(candidate.config) == text), None)
    return same is None or not same.cost / HOLDS_WITHIN <= cost <= same.cost * HOLDS_WITHIN
