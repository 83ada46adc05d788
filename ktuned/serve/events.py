"""The stream of events, and each subscriber's place in it. No IO.

Events are numbered from 1 within an epoch, which is one run of the daemon. A bounded ring keeps the latest. Each
subscriber has a place in the ring and gets the events after it, as fast as it reads. If its place is not in the ring,
because it reads too slowly or comes from another epoch, it gets an event ``gap`` instead and continues from now. So a
slow subscriber loses its place, but never costs memory or delays others.

A peer gets events by the methods ``subscribe`` and ``unsubscribe``, and may wait for jobs in this way.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ktuned.model import FrozenStruct
from ktuned.protocol import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    EmptyAnswer,
    Event,
    NoParams,
    StreamGap,
    StreamPosition,
    SubscribeParams,
    get_event_type,
)
from ktuned.scheduling import Jobs
from ktuned.serve.method import Handler, Peer

RING_EVENTS = 4096
"""Events that the ring keeps: several times as many as a job of default size publishes."""

RING_BYTES = 4 * 1024 * 1024
"""Bytes of the events in the ring: a trial's event has some 500 bytes, one with a compiler's message some KiB."""

_BATCH_BYTES = 64 * 1024
"""Bytes that are sent to a peer before checking again whether it accepts more."""


_NOTIFICATION = 2
"""The message type of MessagePack-RPC."""

_encode = msgspec.msgpack.Encoder().encode


class _EncodedEvent(NamedTuple):
    type: str
    kernel: str | None
    job: int | None
    encoded: bytes


class _Subscription(msgspec.Struct):
    peer: Peer
    kernels: Collection[str] | None
    jobs: Collection[int] | None
    types: Collection[str] | None
    place: int  # the seq of the last event that it was sent, or that its filters left out
    is_lost: bool

    def accepts_event(self, event: _EncodedEvent) -> bool:
        return (
            (self.types is None or event.type in self.types)
            and (self.jobs is None or event.job in self.jobs)
            and (self.kernels is None or event.kernel in self.kernels)
        )


class Events:
    """Publishes events to peers.

    Attributes:
        epoch: A random number that identifies this run of the daemon.
        seq: The number of the latest event.
    """

    def __init__(
        self, *, epoch: int | None = None, ring_events: int = RING_EVENTS, ring_bytes: int = RING_BYTES
    ) -> None:
        self.epoch = secrets.randbits(63) if epoch is None else epoch
        self.seq = 0
        self._ring: dict[int, _EncodedEvent] = {}
        self._oldest = 1
        self._bytes = 0
        self._max_events = ring_events
        self._max_bytes = ring_bytes
        self._subscriptions: dict[int, _Subscription] = {}

    def publish_event(self, event: Event) -> Event:
        """Number an event, send it to every subscriber whose filters it passes, and return it with its number."""
        event = msgspec.structs.replace(event, seq=self.seq + 1, epoch=self.epoch)
        encoded = _encode_notification(event)
        self.seq += 1
        self._ring[self.seq] = _EncodedEvent(get_event_type(event), event.kernel, event.job, encoded)
        self._bytes += len(encoded)
        while len(self._ring) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= len(self._ring.pop(self._oldest).encoded)
            self._oldest += 1
        for subscription in list(self._subscriptions.values()):
            self._send_missed(subscription)
        return event

    def add_subscription(self, peer: Peer, wanted: SubscribeParams) -> StreamPosition:
        """Send a peer all events that pass its filters from now on; return the present position of the stream.

        Events since ``wanted.since`` are sent too, when the peer next accepts bytes. A peer has only one subscription;
        a new one replaces it.
        """
        place, is_lost = self._find_start(wanted.since)
        self._subscriptions[id(peer)] = _Subscription(peer, wanted.kernels, wanted.jobs, wanted.types, place, is_lost)
        peer.on_writable = partial(self.resume_sending, peer)
        peer.on_gone = partial(self.remove_subscription, peer)
        return self.position

    @property
    def position(self) -> StreamPosition:
        """The present position of the stream."""
        return StreamPosition(self.epoch, self.seq)

    def resume_sending(self, peer: Peer) -> None:
        """Send a peer the events that it has missed; does nothing if it has no subscription."""
        subscription = self._subscriptions.get(id(peer))
        if subscription is not None:
            self._send_missed(subscription)

    def remove_subscription(self, peer: Peer) -> bool:
        """End a peer's subscription; return whether it had one."""
        peer.on_writable = peer.on_gone = None
        return self._subscriptions.pop(id(peer), None) is not None

    def _find_start(self, since: tuple[int, int] | None) -> tuple[int, bool]:
        """Return the seq to continue after, and whether events since ``since`` are lost."""
        if since is None:
            return self.seq, False
        epoch, seq = since
        if epoch != self.epoch or not 0 <= seq <= self.seq:
            return self.seq, True
        return seq, False

    def _send_missed(self, subscription: _Subscription) -> None:
        """Send a subscriber the events that it has missed, as long as it accepts bytes."""
        while subscription.peer.is_writable and (subscription.is_lost or subscription.place < self.seq):
            if subscription.is_lost or subscription.place + 1 < self._oldest:
                subscription.is_lost = False
                subscription.place = self.seq
                subscription.peer.send(_encode_notification(StreamGap(epoch=self.epoch, seq=self.seq)))
                continue
            batch: list[bytes] = []
            room = _BATCH_BYTES
            while subscription.place < self.seq and room > 0:
                subscription.place += 1
                event = self._ring[subscription.place]
                if subscription.accepts_event(event):
                    batch.append(event.encoded)
                    room -= len(event.encoded)
            if batch:
                subscription.peer.send(b"".join(batch))


def _encode_notification(event: Event) -> bytes:
    return _encode((_NOTIFICATION, "event", (event,)))


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
