"""The methods ``subscribe`` and ``unsubscribe``: connections that are sent events, and wait for jobs by it."""

from __future__ import annotations

from typing import Any

from ktuned.protocol import SUBSCRIBE, UNSUBSCRIBE, EmptyAnswer, NoParams, StreamPosition, SubscribeParams
from ktuned.scheduling import Jobs
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import Handler


class Subscriptions:
    """Connections that are sent events; one that names jobs waits for them as long as it subscribes."""

    def __init__(self, events: Events, jobs: Jobs) -> None:
        self._events = events
        self._jobs = jobs

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(SUBSCRIBE, self._handle_subscribe),
            Handler(UNSUBSCRIBE, self._handle_unsubscribe),
        ]

    def resume_sending(self, connection: Connection) -> None:
        """Send a connection that takes bytes again what it has missed."""
        self._events.resume_sending(connection)

    def remove_subscription(self, connection: Connection) -> None:
        """Send a connection no more events: it is closed, or does not want them."""
        if self._events.remove_subscription(connection):
            self._jobs.remove_waiter(connection)

    def _handle_subscribe(self, wanted: SubscribeParams, connection: Connection) -> StreamPosition:
        """Send events to this connection, in place of those that it subscribed to before."""
        position = self._events.add_subscription(connection, wanted)
        self._jobs.remove_waiter(connection)
        if wanted.jobs is not None:
            self._jobs.add_waiter(connection, wanted.jobs)
        return position

    def _handle_unsubscribe(self, nothing: NoParams, connection: Connection) -> EmptyAnswer:
        self.remove_subscription(connection)
        return EmptyAnswer()
