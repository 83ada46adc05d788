"""One process of the bridge: its socket, the calls under way, its end.

Many calls are under way at once, each with a number and a deadline of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar, cast

import anyio

from ktuned.bridge import Call, CallFailed, messages
from ktuned.fleet.failures import describe_exit
from ktuned.fleet.output_tail import Tail
from ktuned.ipc import InvalidMessage, frames
from ktuned.model import KtunedError

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item

CLOSED_S: Final = 1.0
"""Time for a process that has closed its socket to end by itself."""


class BridgeDown(KtunedError):
    """The bridge's process is not there, or ended during a call; it is started again by a later call."""

    code = "bridge_down"


class BridgeSlow(KtunedError):
    """A call took longer than its deadline; it is taken back, and the bridge lives on."""

    code = "bridge_deadline"


@dataclass(eq=False, slots=True)
class _Pending:
    """A call under way; ``last_at`` is when its last answer came, from which its deadline counts."""

    call: type[Call[Any, Any]]
    done: asyncio.Future[Any]
    on_item: Callable[[Any], None] | None
    last_at: float


class BridgeProcess(asyncio.Protocol):
    """One process of the bridge and its socket; :attr:`gone` is set when it has ended, and :attr:`end` says how."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, on_gone: Callable[[BridgeProcess], None]) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self.mark = mark
        self.started = monotonic()
        self.gone = anyio.Event()
        self.end = ""
        self._process = process
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(process.pid)
        self._tail = Tail(process.stdout.fileno())
        self._decoder = frames.Decoder()
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        os.set_blocking(self._tail.fd, False)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.add_reader(self._tail.fd, self._on_output)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Expect its end, which says more than the socket; one that goes on without it is killed."""
        self._loop.call_later(CLOSED_S, self.kill, "it closed its socket")

    def pause_writing(self) -> None:
        """Hold calls back until it has read those before."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Take each answer that the bytes complete."""
        try:
            for message in self._decoder.feed(data):
                self._take(messages.decode_answer(message))
        except (frames.FrameError, InvalidMessage) as error:
            self.kill(f"it sent what is no answer: {error}")

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

    async def exchange(self, call: Call[R, I], deadline_s: float, on_item: Callable[[I], None] | None) -> R:
        """Send a call and wait for its reply, as :meth:`ktuned.fleet.Bridge.exchange`."""
        number = next(self._numbers)
        pending = _Pending(type(call), self._loop.create_future(), on_item, monotonic())
        data = messages.encode_call(number, call)
        self._pending[number] = pending
        try:
            with anyio.move_on_after(deadline_s):
                await self._writable.wait()
            if self._transport is None or self._transport.is_closing():
                raise BridgeDown(self._down())
            self._transport.write(data)
            reply: R = await self._reply(pending, deadline_s)
        finally:
            del self._pending[number]
            if not pending.done.done():
                pending.done.cancel()
                if self._transport is not None and not self._transport.is_closing():
                    self._transport.write(messages.encode_cancel(number))
            elif not pending.done.cancelled():
                # Seen, also where the caller was cancelled as it came.
                pending.done.exception()
        return reply

    async def _reply(self, pending: _Pending, deadline_s: float) -> Any:
        while True:
            left_s = pending.last_at + deadline_s - monotonic()
            if left_s <= 0:
                raise BridgeSlow(f"ktuned-bridge: {pending.call.operation} was not over after {deadline_s:.3g} s")
            await asyncio.wait([pending.done], timeout=None if left_s == math.inf else left_s)
            if pending.done.done():
                return pending.done.result()

    def _on_output(self) -> None:
        if not self._tail.read_some():
            self._loop.remove_reader(self._tail.fd)

    def kill(self, why: str = "") -> None:
        """SIGKILL the process and its group."""
        if self._pidfd >= 0:
            self.end = self.end or why
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _on_exit(self) -> None:
        # Its children, while its process group is still its own.
        self.kill()
        self._tail.read_rest()
        for descriptor in (self._pidfd, self._tail.fd):
            self._loop.remove_reader(descriptor)
        os.close(self._pidfd)
        self._pidfd = -1
        returncode = self._process.wait()
        lines = self._tail.take().strip().splitlines()
        said = f": {lines[-1][:200]}" if lines and not self.end else ""
        self.end = self.end or f"it {describe_exit(returncode)}{said}"
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._transport is not None:
            self._transport.abort()
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(BridgeDown(self._down()))
        self.gone.set()
        self._on_gone(self)

    def _down(self) -> str:
        return f"ktuned-bridge is gone: {self.end or 'it has ended'}"
