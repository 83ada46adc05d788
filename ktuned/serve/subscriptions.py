"""The methods ``subscribe`` and ``unsubscribe``: a peer gets events, and may wait for jobs in this way."""

from __future__ import annotations

from functools import partial
from typing import Any

from ktuned.model import FrozenStruct
from ktuned.protocol import SUBSCRIBE, UNSUBSCRIBE, EmptyAnswer, NoParams, StreamPosition, SubscribeParams
from ktuned.scheduling import Jobs
from ktuned.serve.events import Events
from ktuned.serve.method import Handler, Peer


class Subscriptions(FrozenStruct):
    """Handles subscriptions. A peer that names jobs counts as waiting for them while its subscription lasts."""

    events: Events
    jobs: Jobs

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(SUBSCRIBE, self.handle_subscribe),
            Handler(UNSUBSCRIBE, self.handle_unsubscribe),
        ]

    def handle_subscribe(self, params: SubscribeParams, peer: Peer) -> StreamPosition:
        """Send events to this peer from now on; this replaces an earlier subscription."""
        position = self.events.add_subscription(peer, params)
        peer.on_gone = partial(self._end_subscription, peer)
        self.jobs.remove_waiter(peer)
        if params.jobs is not None:
            self.jobs.add_waiter(peer, params.jobs)
        return position

    def handle_unsubscribe(self, nothing: NoParams, peer: Peer) -> EmptyAnswer:
        """Stop sending events to this peer."""
        self._end_subscription(peer)
        return EmptyAnswer()

    def _end_subscription(self, peer: Peer) -> None:
        if self.events.remove_subscription(peer):
            self.jobs.remove_waiter(peer)
