"""Event router: delivers an event to the parts that it concerns, and then to the subscribers.

Parts come first, so that a client that hears of a change and then sends a request gets an up-to-date answer. Parts are
called while the publisher waits, so they must not block.
"""

from __future__ import annotations

from typing import Protocol

from ktuned.protocol import AnswersChanged, Event, TrialDone
from ktuned.serve import Events


class Listener(Protocol):
    """A part that acts on events."""

    def handle_event(self, event: Event) -> None:
        """Act on an event; do not block."""


class EventRouter:
    """Publishes events to parts, in their order, and to subscribers.

    Attributes:
        trials: How many trials have ended since the start.
    """

    def __init__(self, events: Events, *listeners: Listener) -> None:
        self.trials = 0
        self._events = events
        self._listeners = listeners

    def publish_event(self, event: Event) -> None:
        """Deliver one event."""
        self.trials += isinstance(event, TrialDone) and event.trial is not None
        for listener in self._listeners:
            listener.handle_event(event)
        if not isinstance(event, AnswersChanged):
            self._events.publish_event(event)
