"""The result of a lookup: the answer that is sent, and facts about it that only the daemon uses."""

from __future__ import annotations

from time import time

import msgspec

from ktuned.model import Config
from ktuned.protocol import Answer


class Lookup(msgspec.Struct, frozen=True):
    """A lookup's answer, with facts that are not sent.

    Attributes:
        answer: the answer that is sent.
        is_certain: if not, there may be a better answer in a moment, and this one is not pinned.
        undecided: configs that may be served instead once a worker has found that the space has them.
        failure: why no tuning is queued, if it would fail again; the answer's ``message`` may give another reason.
    """

    answer: Answer
    is_certain: bool = True
    undecided: tuple[Config, ...] = ()
    failure: str = ""


def compute_age(decided: float | None) -> float | None:
    """Return the seconds since a Unix time, rounded to milliseconds; None stays."""
    return None if decided is None else round(max(0.0, time() - decided), 3)
