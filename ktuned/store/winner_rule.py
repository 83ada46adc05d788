"""The rule by which a trial's new result changes the winner. Decides; no IO.

The rule has its own module so that every case can be tested without a database.
"""

from __future__ import annotations

from enum import Enum, auto

from ktuned.model import FrozenStruct


class Standing(FrozenStruct):
    """A trial as the rule sees it: its id, its context's id, and its cost, which is ``None`` without a figure."""

    trial: int
    context: int
    cost: float | None


class Effect(Enum):
    """The effect of a result on the winner of its key."""

    KEEP = auto()
    TAKE = auto()
    VACATE = auto()


def judge_result(result: Standing, incumbent: Standing | None, *, keeps_winner: bool = False) -> Effect:
    """Decide about the winner of one key, by its objective, after a trial's result.

    Figures of two contexts are never compared: a measurement in the present context replaces a winner of an older one.
    If the winner is measured again, it stays the winner, with its new figure, even if older trials now look faster: the
    two figures are from different times, and noise differs. A later trial that beats the new figure becomes the winner.
    While its job ``keeps_winner``, no other trial becomes the winner, because it is not yet known to be better than the
    config that is served.
    """
    if result.cost is None:
        return Effect.VACATE if incumbent and incumbent.trial == result.trial else Effect.KEEP
    if incumbent is not None and incumbent.trial == result.trial:
        return Effect.TAKE
    if keeps_winner:
        return Effect.KEEP
    if incumbent is None or incumbent.cost is None:
        return Effect.TAKE
    if incumbent.context != result.context:
        return Effect.TAKE
    return Effect.TAKE if result.cost < incumbent.cost else Effect.KEEP
