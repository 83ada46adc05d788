"""What a lookup finds: the answer that is sent, and what the daemon knows about it besides."""

from __future__ import annotations

from time import time

import msgspec

from ktuned.model import Config
from ktuned.protocol import Answer


class Lookup(msgspec.Struct, frozen=True):
    """A lookup's answer, with what is not sent.

    Attributes:
        is_certain: if not, there may be a better answer in a moment, and it is not pinned.
        undecided: configs that might be served instead: a worker has yet to say whether the space holds them.
        failure: why no tuning is queued that would fail again; the answer's ``message`` may say other things.
    """

    answer: Answer
    is_certain: bool = True
    undecided: tuple[Config, ...] = ()
    failure: str = ""


def compute_age(decided: float | None) -> float | None:
    """Return the seconds since a Unix time, rounded to milliseconds; None stays."""
    return None if decided is None else round(max(0.0, time() - decided), 3)
