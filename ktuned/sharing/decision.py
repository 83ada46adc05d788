"""The rules for shared winners: which are tried here, when one saves the search, and which of ours are published. No
IO.

Another daemon's winner is only a good guess, even for the same context: clocks, cooling and load differ. So it is never
served before it was compiled, checked and timed here. If it costs the same here as there, no search is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from ktuned.model import Config, canonical, median
from ktuned.sharing.shared_store import SharedWinner

HOLDS_WITHIN: Final = 1.10
"""A shared config saves the search if its costs here and where it was found differ by at most this factor."""

BETTER_BY: Final = 0.97
"""A shared config competes with a fresh winner of ours if its cost is below this share of ours; less may be noise."""

MAX_CANDIDATES: Final = 32
"""How many winners of one context are considered, newest first; older ones only repeat the same few configs."""


class Candidate(msgspec.Struct, frozen=True):
    """A config that others found best in one context, and its typical cost there."""

    config: Config
    cost: float


def rank_candidates(shared: Iterable[SharedWinner]) -> list[Candidate]:
    """Return the configs of one context's shared winners, the cheapest first.

    If several daemons have measured a config, its cost is their median, so that one bad clock does not decide.
    """
    newest = sorted(shared, key=lambda winner: winner.decided, reverse=True)[:MAX_CANDIDATES]
    groups: dict[str, list[SharedWinner]] = {}
    for winner in newest:
        groups.setdefault(canonical(winner.config), []).append(winner)
    found = [Candidate(group[0].config, median(winner.cost for winner in group)) for group in groups.values()]
    return sorted(found, key=lambda candidate: (candidate.cost, canonical(candidate.config)))


def confirms_cost(shared_cost: float, cost: float | None) -> bool:
    """Return whether a shared config costs about the same here as there; ``cost`` is ``None`` if it was not measured.

    A config that is far faster here does not count either: the other daemon then searched under different conditions.
    """
    return cost is not None and shared_cost / HOLDS_WITHIN <= cost <= HOLDS_WITHIN * shared_cost


class Action(Enum):
    """What to do with a shared candidate for a key."""

    NOTHING = auto()
    VERIFY = auto()
    COMPETE = auto()


class OwnWinner(msgspec.Struct, frozen=True):
    """Our own winner of a key: its cost, and whether it was measured in the present context."""

    cost: float | None
    is_current: bool


def choose_action(candidate: Candidate, ours: OwnWinner | None, *, is_tried: bool, is_open: bool) -> Action:
    """Decide what to do with a candidate of the present context.

    Without a winner of our own in the present context, the candidate is verified. Otherwise it competes with our
    winner, if its cost where it was found is clearly better.

    Args:
        candidate: The candidate.
        ours: Our own winner of the key, if there is one.
        is_tried: Whether the candidate's config already has an outcome here, in this very context.
        is_open: Whether a job is working on the key.
    """
    if is_open or is_tried:
        return Action.NOTHING
    if ours is None or not ours.is_current:
        return Action.VERIFY
    return Action.COMPETE if ours.cost is not None and candidate.cost < BETTER_BY * ours.cost else Action.NOTHING


class WinnerFacts(msgspec.Struct, frozen=True):
    """The facts that decide whether a winner of ours may be published."""

    is_final: bool
    is_current: bool
    is_imported: bool
    is_withheld: bool


def should_publish(decided: WinnerFacts, cost: float, config: Config, known: Sequence[Candidate]) -> bool:
    """Decide whether a winner of ours is worth publishing; ``known`` are the context's candidates so far.

    The winner must come from a final round in the present context. It is not published if it was imported, because
    then it was not measured here, or if it was tuned with ``--no-share`` (withheld). A config that is already there
    with about the same cost is not published again.
    """
    if not (decided.is_final and decided.is_current) or decided.is_imported or decided.is_withheld:
        return False
    text = canonical(config)
    same = next((candidate for candidate in known if canonical(candidate.config) == text), None)
    return same is None or not confirms_cost(same.cost, cost)
