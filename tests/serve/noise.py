"""Events without a meaning, for tests of the stream that carries them."""

from __future__ import annotations

from typing import Any

from ktuned.protocol import Event
from ktuned.serve.events import Events


class Noise(Event, frozen=True, kw_only=True, tag="noise"):
    """Any event, as large as its text."""

    text: Any = ""


class Last(Event, frozen=True, kw_only=True, tag="last"):
    """An event of another type."""


def count_lagging(events: Events) -> int:
    """Return how many subscribers have not yet been sent everything."""
    return sum(one.place < events.seq for one in events._subscriptions.values())
