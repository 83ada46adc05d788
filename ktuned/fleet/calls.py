"""Calls under way over one stream to another process: numbers, deadlines, answers.

Each has a number, and a deadline that begins again with each of its answers.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Never, TypeVar

import anyio
import msgspec

from ktuned.bridge import Call, CallFailed, messages
from ktuned.ipc import frames, replies
from ktuned.model import KtunedError

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class BridgeDown(KtunedError):
    """The other side is not there, or ended during a call."""

    code = "bridge_down"


class BridgeSlow(KtunedError):
    """A call took longer than its deadline; it is taken back, and the other side lives on."""

    code = "bridge_deadline"


class _Pending(msgspec.Struct, eq=False):
    """A call under way; ``last_at`` is when its last answer came, from which its deadline counts."""

    call: type[Call[Any, Any]]
    done: asyncio.Future[Any]
    on_item: Callable[[Any], None] | None
    last_at: float


class Calls:
    """Makes calls with ``send``, which takes frames in order and raises :class:`BridgeDown` where it cannot.

    ``writable`` waits until the stream takes more; ``name`` is the other side in messages.
    """

    def __init__(self, name: str, send: Callable[[bytes], None], writable: Callable[[], Awaitable[Any]]) -> None:
        self._name = name
        self._send = send
        self._writable = writable
        self._loop = asyncio.get_running_loop()
        self._decoder = frames.Decoder()
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream, and each answer that they complete.

        Raises:
            FrameError, InvalidMessage: they are no answers; the stream cannot be read on.
        """
        for message in self._decoder.feed(data):
            self._take(messages.decode_answer(message))

    def _take(self, answer: messages.Answer) -> None:
        pending = self._pending.get(answer.number)
        if pending is None or pending.done.done():
            # Taken back meanwhile.
            return
        pending.last_at = monotonic()
        if answer.fault is not None:
            fault = answer.fault
            pending.done.set_exception(CallFailed(fault.code, fault.message, hint=fault.hint))
            return
        value = messages.value_of(pending.call, answer)
        if answer.is_last:
            pending.done.set_result(value)
        elif pending.on_item is not None:
            pending.on_item(value)

    async def exchange(self, call: Call[R, I], deadline_s: float, on_item: Callable[[I], None] | None = None) -> R:
        """Send a call and wait for its reply, as :meth:`ktuned.fleet.Bridge.exchange`."""
        number = next(self._numbers)
        pending = _Pending(type(call), self._loop.create_future(), on_item, monotonic())
        data = messages.encode_service_call(number, call)
        self._pending[number] = pending
        is_sent = False
        try:
            with anyio.move_on_after(deadline_s):
                await self._writable()
            if not pending.done.done():
                self._send(data)
                is_sent = True
            reply: R = await self._reply(pending, deadline_s)
        finally:
            del self._pending[number]
            if not pending.done.done():
                pending.done.cancel()
                if is_sent:
                    self._take_back(number)
            elif not pending.done.cancelled():
                # Seen, also where the caller was cancelled as it came.
                pending.done.exception()
        return reply

    async def post(self, call: Call[replies.Empty, Never], deadline_s: float) -> None:
        """Send a call that has no answers, once the stream takes it.

        Raises:
            BridgeDown, BridgeSlow: it cannot be sent.
        """
        data = messages.encode_note(call)
        try:
            with anyio.fail_after(deadline_s):
                await self._writable()
        except TimeoutError:
            raise BridgeSlow(f"{self._name}: {call.operation} could not be sent for {deadline_s:.3g} s") from None
        self._send(data)

    def _take_back(self, number: int) -> None:
        try:
            self._send(messages.encode_cancel(number))
        except BridgeDown:
            return

    async def _reply(self, pending: _Pending, deadline_s: float) -> Any:
        while not pending.done.done():
            left_s = pending.last_at + deadline_s - monotonic()
            if left_s <= 0:
                raise BridgeSlow(f"{self._name}: {pending.call.operation} timed out after {deadline_s:.3g} s")
            await asyncio.wait([pending.done], timeout=None if left_s == math.inf else left_s)
        return pending.done.result()

    def fail(self, reason: str) -> None:
        """Fail all calls under way: the other side has ended."""
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(BridgeDown(reason))
