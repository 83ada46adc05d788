"""The stream of events, and each subscriber's place in it. No IO.

Events are numbered from 1 within an epoch, which is a daemon's life. A bounded ring keeps the latest. Each
subscriber has a place in the ring and is sent the following events while its sink takes them; one that falls off the
ring's end, because it reads too slowly or comes from another epoch, is sent ``fresh: true`` instead and continues
from now. So a slow subscriber loses its place, and never costs memory or delays others.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from ktuned.model import UsageError
from ktuned.protocol import EventsInfo
from ktuned_client.wire import encode_notification

RING_EVENTS: Final = 4096
"""Events that are kept: several times as many as a job of default size publishes."""

RING_BYTES: Final = 4 * 1024 * 1024
"""Bytes that they may take: a trial's event is some 500 bytes, one with a compiler's message some KiB."""

_BATCH_BYTES: Final = 64 * 1024
"""Bytes that are handed to a sink before it is asked again whether it takes more."""


class Sink(Protocol):
    """Destination of a subscriber's events, whose queue is bounded.

    Its owner calls :meth:`Events.resume_sending` whenever it takes bytes again, and
    :meth:`Events.remove_subscription` once it never will.
    """

    @property
    def is_writable(self) -> bool:
        """True if the sink takes bytes now."""

    def send(self, data: bytes) -> None:
        """Take an encoded message, or several."""


class _EncodedEvent(NamedTuple):
    type: str
    kernel: str | None
    job: int | None
    encoded: bytes


class _Subscription(msgspec.Struct):
    sink: Sink
    kernels: frozenset[str] | None
    jobs: frozenset[int] | None
    types: frozenset[str] | None
    place: int  # the seq of the last event it was given or spared
    is_lost: bool

    def accepts_event(self, event: _EncodedEvent) -> bool:
        return (
            (self.types is None or event.type in self.types)
            and (self.jobs is None or event.job in self.jobs)
            and (self.kernels is None or event.kernel in self.kernels)
        )


class Events:
    """Publishes events to sinks; ``epoch`` is random, ``seq`` the number of the latest event."""

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

    def publish_event(
        self,
        type: str,  # noqa: A002 - the protocol's word
        *,
        kernel: str | None = None,
        job: int | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Number an event, send it to every subscriber that wants and takes it, and return its map.

        ``kernel`` is the full name; ``fields`` hold what MessagePack can carry.
        """
        event = {"seq": self.seq + 1, "epoch": self.epoch, "type": type, "kernel": kernel, "job": job, **fields}
        encoded = encode_notification("event", event)
        self.seq += 1
        self._ring[self.seq] = _EncodedEvent(type, kernel, job, encoded)
        self._bytes += len(encoded)
        while len(self._ring) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= len(self._ring.pop(self._oldest).encoded)
            self._oldest += 1
        for subscription in list(self._subscriptions.values()):
            self._send_missed(subscription)
        return event

    def add_subscription(
        self,
        sink: Sink,
        *,
        since: Sequence[int] | None = None,
        kernels: Collection[str] | None = None,
        jobs: Collection[int] | None = None,
        types: Collection[str] | None = None,
    ) -> dict[str, int]:
        """Give a sink the events that pass every filter, and return where the stream stands.

        ``since`` is an (epoch, seq): what followed it is given too, at the next :meth:`resume_sending`. A sink has one
        subscription; a second one takes the first one's place.

        Raises:
            UsageError: an argument is not of its shape.
        """
        place, is_lost = self._find_start(since)
        self._subscriptions[id(sink)] = _Subscription(
            sink,
            _parse_filter(kernels, str, "kernels"),
            _parse_filter(jobs, int, "jobs"),
            _parse_filter(types, str, "types"),
            place,
            is_lost,
        )
        return {"epoch": self.epoch, "seq": self.seq}

    def resume_sending(self, sink: Sink) -> None:
        """Give a sink what it has not had; one that does not subscribe gets nothing."""
        subscription = self._subscriptions.get(id(sink))
        if subscription is not None:
            self._send_missed(subscription)

    def remove_subscription(self, sink: Sink) -> bool:
        """Give a sink no more events; return whether it had any to get."""
        return self._subscriptions.pop(id(sink), None) is not None

    def describe_ring(self) -> EventsInfo:
        """Return how full the ring is, how many subscribe, and how many of them lag."""
        return EventsInfo(
            seq=self.seq,
            events=len(self._ring),
            bytes=self._bytes,
            subscribers=len(self._subscriptions),
            lagging=sum(one.place < self.seq for one in self._subscriptions.values()),
        )

    def _find_start(self, since: Any) -> tuple[int, bool]:
        """Return the seq that ``since`` stands for, and whether it is one that cannot be gone on from."""
        if since is None:
            return self.seq, False
        if not isinstance(since, list | tuple) or len(since) != 2 or not all(type(part) is int for part in since):
            raise UsageError("`since` is not [epoch, seq]", hint="pass both numbers of the last event you saw")
        epoch, seq = since
        if epoch != self.epoch or not 0 <= seq <= self.seq:
            return self.seq, True
        return seq, False

    def _send_missed(self, subscription: _Subscription) -> None:
        """Give a subscriber what it has not had, as far as its sink takes it."""
        while subscription.sink.is_writable and (subscription.is_lost or subscription.place < self.seq):
            if subscription.is_lost or subscription.place + 1 < self._oldest:
                subscription.is_lost = False
                subscription.place = self.seq
                subscription.sink.send(self._gap_event())
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
                subscription.sink.send(b"".join(batch))

    def _gap_event(self) -> bytes:
        return encode_notification("event", {"fresh": True, "epoch": self.epoch, "seq": self.seq})


def _parse_filter(values: Any, kind: type, name: str) -> frozenset[Any] | None:
    if values is None:
        return None
    if (
        not isinstance(values, Collection)
        or isinstance(values, str)
        or not all(type(value) is kind for value in values)
    ):
        raise UsageError(f"`{name}` is not a list of {kind.__name__}", hint="leave it out to get them all")
    return frozenset(values)
