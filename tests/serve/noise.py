"""Events without meaning, for tests of the stream that carries them."""

from __future__ import annotations

from typing import Any

from ktuned.protocol import Event
from ktuned.serve.events import Events


class NoiseEvent(Event, frozen=True, kw_only=True, tag="noise"):
    """An event with a text of any size."""

    text: Any = ""


class LastEvent(Event, frozen=True, kw_only=True, tag="last"):
    """An event of another type."""


def count_lagging(events: Events) -> int:
    """Return the number of subscribers that have not received all events."""
    return sum(subscription.place < events.seq for subscription in events._subscriptions.values())
