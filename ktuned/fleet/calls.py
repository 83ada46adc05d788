"""Calls under way over one stream to another process: numbers, deadlines, answers.

Calls run side by side. Each has a number, which its answers carry, and a deadline, which begins again with each answer.
A call whose deadline passes, or whose caller is cancelled, is cancelled on the other side, too; an answer that comes
later is dropped. When the other side ends, all calls fail with the reason.
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
    """The other side cannot be reached, or ended during a call."""

    code = "bridge_down"


class BridgeSlow(KtunedError):
    """A call took longer than its deadline. It is cancelled, and the other side stays alive."""

    code = "bridge_deadline"


class _Pending(msgspec.Struct, eq=False):
    """A call under way; ``last_at`` is when its last answer came, and its deadline counts from then."""

    call: type[Call[Any, Any]]
    done: asyncio.Future[Any]
    on_item: Callable[[Any], None] | None
    last_at: float


class Calls:
    """Makes calls over a stream.

    Args:
        name: The name of the other side in error messages.
        send: Sends a frame, in order; raises :class:`BridgeDown` if it cannot.
        writable: Waits until the stream accepts more bytes.
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
        """Decode bytes of the stream, and hand each completed answer to its caller.

        Raises:
            FrameError, InvalidMessage: the bytes are no answers; the stream cannot be read any further.
        """
        for message in self._decoder.feed(data):
            self._take_answer(messages.decode_answer(message))

    def _take_answer(self, answer: messages.Answer) -> None:
        pending = self._pending.get(answer.number)
        if pending is None or pending.done.done():
            # The call was cancelled meanwhile.
            return
        pending.last_at = monotonic()
        if answer.fault is not None:
            fault = answer.fault
            pending.done.set_exception(CallFailed(fault.code, fault.message, hint=fault.hint))
            return
        value = messages.decode_value(pending.call, answer)
        if answer.is_last:
            pending.done.set_result(value)
        elif pending.on_item is not None:
            pending.on_item(value)

    async def send_call(self, call: Call[R, I], deadline_s: float, on_item: Callable[[I], None] | None = None) -> R:
        """Send a call and wait for its reply, as :meth:`ktuned.fleet.Bridge.call_service`."""
        number = next(self._numbers)
        pending = _Pending(type(call), self._loop.create_future(), on_item, monotonic())
        data = messages.encode_call(call, number)
        self._pending[number] = pending
        is_sent = False
        try:
            with anyio.move_on_after(deadline_s):
                await self._writable()
            if not pending.done.done():
                self._send(data)
                is_sent = True
            reply: R = await self._await_reply(pending, deadline_s)
        finally:
            del self._pending[number]
            if not pending.done.done():
                pending.done.cancel()
                if is_sent:
                    self._cancel_call(number)
            elif not pending.done.cancelled():
                # Retrieve the exception: if the caller was cancelled just as it came, asyncio would log it as lost.
                pending.done.exception()
        return reply

    async def post_call(self, call: Call[replies.Empty, Never], deadline_s: float) -> None:
        """Send a call that has no answers, once the stream accepts it.

        Raises:
            BridgeDown, BridgeSlow: the call cannot be sent.
        """
        data = messages.encode_call(call)
        try:
            with anyio.fail_after(deadline_s):
                await self._writable()
        except TimeoutError:
            raise BridgeSlow(f"{self._name}: {call.operation} could not be sent for {deadline_s:.3g} s") from None
        self._send(data)

    def _cancel_call(self, number: int) -> None:
        try:
            self._send(messages.encode_cancel(number))
        except BridgeDown:
            return

    async def _await_reply(self, pending: _Pending, deadline_s: float) -> Any:
        while not pending.done.done():
            remaining_s = pending.last_at + deadline_s - monotonic()
            if remaining_s <= 0:
                raise BridgeSlow(f"{self._name}: {pending.call.operation} timed out after {deadline_s:.3g} s")
            await asyncio.wait([pending.done], timeout=None if remaining_s == math.inf else remaining_s)
        return pending.done.result()

    def fail_all(self, reason: str) -> None:
        """Fail all calls under way, because the other side has ended."""
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(BridgeDown(reason))
