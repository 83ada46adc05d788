"""The protocol's methods (docs/protocol.md): each asks the part that knows."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any

import ktuned
from ktuned.lookup import SETTLE_S, Answer, Lookups
from ktuned.model import (
    KtunedError,
)
from ktuned.protocol import (
    BACKENDS,
    HELLO,
    LOOKUP,
    LOOKUP_MANY,
    PINS,
    SHUTDOWN,
    STATUS,
    UNPIN,
    LookupManyParams,
    LookupParams,
    NoParams,
    PinsAnswer,
    UnpinAnswer,
    UnpinParams,
)
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import DeferredAnswer, Handler
from ktuned_client.wire import PROTOCOL_VERSION

CAPABILITIES = ("lookup", "tune", "subscribe", "pin", "capture", "export")
"""Features that a client may rely on besides the protocol's version."""


class Methods:
    """Handlers of the protocol's methods; ``status`` and ``stop`` are the daemon's."""

    def __init__(
        self,
        *,
        lookups: Lookups,
        events: Events,
        status: Callable[[], dict[str, Any]],
        probe: Callable[[], Awaitable[list[dict[str, Any]]]],
        stop: Callable[[], None],
    ) -> None:
        self._lookups = lookups
        self._events = events
        self._status = status
        self._probe = probe
        self._stop = stop

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return every method with its handler."""
        return [
            Handler(HELLO, self.handle_hello),
            Handler(LOOKUP, self.handle_lookup),
            Handler(LOOKUP_MANY, self.lookup_many),
            Handler(PINS, self.handle_pins),
            Handler(UNPIN, self.handle_unpin),
            Handler(BACKENDS, self.handle_backends),
            Handler(STATUS, self.handle_status),
            Handler(SHUTDOWN, self.handle_shutdown),
        ]

    def handle_hello(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say who serves here."""
        return {
            "protocol": PROTOCOL_VERSION,
            "build": ktuned.__version__,
            "capabilities": list(CAPABILITIES),
            "epoch": self._events.epoch,
            "table": self._lookups.table.path,
            "pid": os.getpid(),
        }

    def handle_lookup(self, wanted: LookupParams, connection: Connection) -> dict[str, Any] | DeferredAnswer:
        """Answer one lookup, from memory; the first of a problem under a pin waits for the disk."""
        return self._look_up(wanted)

    def lookup_many(self, wanted: LookupManyParams, connection: Connection) -> dict[str, Any] | DeferredAnswer:
        """Answer several lookups, in their order; one that is refused has its error in its place."""
        answers = [self._look_up_or_explain(entry) for entry in wanted.lookups]
        if not any(type(answer) is DeferredAnswer for answer in answers):
            return {"answers": answers}

        async def rest() -> dict[str, Any]:
            return {
                "answers": [await answer.rest() if type(answer) is DeferredAnswer else answer for answer in answers]
            }

        return DeferredAnswer(rest)

    def handle_pins(self, nothing: NoParams, connection: Connection) -> PinsAnswer:
        """List the pins, and how many answers each holds since when."""
        return PinsAnswer(tuple(self._lookups.pins.list_pins()))

    async def handle_unpin(self, wanted: UnpinParams, connection: Connection) -> UnpinAnswer:
        """Give up a pin."""
        return UnpinAnswer(wanted.pin, await self._lookups.pins.give_up(wanted.pin))

    def _look_up(self, wanted: LookupParams) -> dict[str, Any] | DeferredAnswer:
        settle_until = monotonic() + min(wanted.settle, SETTLE_S)
        if wanted.pin is not None:
            found = self._lookups.lookup_pinned(
                wanted.pin,
                wanted.kernel,
                wanted.problem,
                wanted.device,
                tune=wanted.tune,
                directory=wanted.directory,
                objective=wanted.objective,
                settle_until=settle_until,
            )
            return found.to_wire() if isinstance(found, Answer) else _answer_later(found)
        look_up = partial(
            self._lookups.find_answer,
            wanted.kernel,
            wanted.problem,
            wanted.device,
            tune=wanted.tune,
            directory=wanted.directory,
            objective=wanted.objective,
        )
        answer = look_up()
        if answer.undecided and wanted.settle > 0:
            return _answer_later(partial(self._lookups.settle_answer, answer, look_up, settle_until))
        return answer.to_wire()

    def _look_up_or_explain(self, wanted: LookupParams) -> dict[str, Any] | DeferredAnswer:
        try:
            return self._look_up(wanted)
        except KtunedError as error:
            return {"error": error.to_wire()}

    async def handle_backends(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say what every environment's backends are and can do, asking those that have not been asked yet."""
        return {"environments": await self._probe()}

    def handle_status(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say how every part does."""
        return self._status()

    def handle_shutdown(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Stop the daemon; the next one continues unfinished jobs."""
        self._stop()
        return {}


def _answer_later(find: Callable[[], Awaitable[Answer]]) -> DeferredAnswer:
    async def rest() -> dict[str, Any]:
        return (await find()).to_wire()

    return DeferredAnswer(rest)
