"""The rule by which a trial's new result changes the winner. Decides; no IO.

It is a module of its own so that every case can be tested without a database.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec


class Standing(msgspec.Struct, frozen=True):
    """A trial as the rule sees it: its row, its context's row, and what its figure costs, ``None`` if it has none."""

    trial: int
    context: int
    cost: float | None


class Effect(Enum):
    """The effect of a result on the winner of its key."""

    KEEP = auto()
    TAKE = auto()
    VACATE = auto()


def judge_result(result: Standing, incumbent: Standing | None, *, is_opening: bool = False) -> Effect:
    """Decide about the winner of one key, by its objective, after a trial's result.

    Figures of two contexts are never compared: a measurement in today's context replaces yesterday's winner. An
    incumbent that is measured again stays the winner with its new figure, because trials that look faster now were
    measured in a noisier hour; a trial that beats the new figure from then on becomes the winner. While its job
    ``is_opening`` no other trial becomes the winner: it is not known yet to be better than what is served.
    """
    if result.cost is None:
        return Effect.VACATE if incumbent and incumbent.trial == result.trial else Effect.KEEP
    if incumbent is not None and incumbent.trial == result.trial:
        return Effect.TAKE
    if is_opening:
        return Effect.KEEP
    if incumbent is None or incumbent.cost is None:
        return Effect.TAKE
    if incumbent.context != result.context:
        return Effect.TAKE
    return Effect.TAKE if result.cost < incumbent.cost else Effect.KEEP
