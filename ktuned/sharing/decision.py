"""The rules for what others share: which of it is tried here, when it is served without a search. Decides; no IO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from ktuned.model import Config, canonical, median
from ktuned.sharing.shared_store import SharedWinner

HOLDS_WITHIN: Final = 1.10
"""A shared config needs no search if it costs here what it costs where it was found, within this factor either way."""

BETTER_BY: Final = 0.97
"""A shared config is tried beside a fresh winner of ours if it costs less than this part of ours: less is noise."""

MAX_CANDIDATES: Final = 32
"""Objects of one context that are looked at, the newest: more are the same few configs, again and again."""


class Candidate(msgspec.Struct, frozen=True):
    """A config that others found the best in one context, and the typical cost of it there."""

    config: Config
    cost: float


def rank_candidates(shared: Iterable[SharedWinner]) -> list[Candidate]:
    """Return the configs of one context's shared winners, the cheapest first.

    Of a config that several have measured the median counts: one bad clock decides nothing.
    """
    newest = sorted(shared, key=lambda winner: winner.decided, reverse=True)[:MAX_CANDIDATES]
    groups: dict[str, list[SharedWinner]] = {}
    for winner in newest:
        groups.setdefault(canonical(winner.config), []).append(winner)
    found = [Candidate(group[0].config, median(winner.cost for winner in group)) for group in groups.values()]
    return sorted(found, key=lambda candidate: (candidate.cost, canonical(candidate.config)))


def cost_holds(shared_cost: float, cost: float | None) -> bool:
    """Return whether a shared config costs here what it did there; ``None`` for one that was not measured.

    One that is far faster here says nothing of its search: the figure that it won by was another.
    """
    return cost is not None and shared_cost / HOLDS_WITHIN <= cost <= HOLDS_WITHIN * shared_cost


class Action(Enum):
    """The use of a shared candidate for a key."""

    NOTHING = auto()
    VERIFY = auto()
    COMPETE = auto()


class OwnWinner(msgspec.Struct, frozen=True):
    """Our own winner of a key: what its figure costs, and whether it was measured in the present context."""

    cost: float | None
    is_current: bool


def choose_action(candidate: Candidate, ours: OwnWinner | None, *, is_tried: bool, is_open: bool) -> Action:
    """Decide what a candidate of the present context is good for.

    ``is_tried`` if its config has an outcome here, in this very context; ``is_open`` if a job works on the key. Without
    a winner of the present context it is verified; beside one it competes if it is clearly better there.
    """
    if is_open or is_tried:
        return Action.NOTHING
    if ours is None or not ours.is_current:
        return Action.VERIFY
    return Action.COMPETE if ours.cost is not None and candidate.cost < BETTER_BY * ours.cost else Action.NOTHING


class WinnerFacts(msgspec.Struct, frozen=True):
    """A winner of ours that may be published: whether a final round decided it, here, in the present context."""

    is_final: bool
    is_current: bool
    is_imported: bool
    is_withheld: bool


def is_published(decided: WinnerFacts, cost: float, config: Config, known: Sequence[Candidate]) -> bool:
    """Decide whether a winner of ours is worth publishing; ``known`` are the context's candidates so far.

    One that was imported was not measured here, one that is withheld was tuned with ``--no-share``. A config whose
    figure is known already says nothing new.
    """
    if not (decided.is_final and decided.is_current) or decided.is_imported or decided.is_withheld:
        return False
    text = canonical(config)
    same = next((candidate for candidate in known if canonical(candidate.config) == text), None)
    return same is None or not same.cost / HOLDS_WITHIN <= cost <= same.cost * HOLDS_WITHIN
