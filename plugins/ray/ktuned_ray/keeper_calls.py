"""The way to one keeper: a direct connection to its actor, or else calls of the actor that carry bytes both ways.

At least one call is always under way, also beside a connection: Ray ends it with the actor, and says why. Calls may end
in another order than they began, so answers are passed on by their places in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

import ray.exceptions

from ktuned.bridge import CallFailed, Send
from ktuned_ray import cluster_calls, direct
from ktuned_ray.failures import find_hint, format_error
from ktuned_ray.keeper_actor import POLL_S

ANSWER_S: Final = 10.0
"""Time for an actor's answer beyond what the actor itself waits; after that its node counts as lost."""

REASON_S: Final = 5.0
"""Time for Ray to say why an actor has ended, after the connection to it was lost."""

_READ_BYTES: Final = 1 << 18


class KeeperCalls:
    """Calls of a keeper's ``actor``; its answers go to ``send`` in order. ``streams``, if set, carry all bytes."""

    def __init__(self, actor: Any, send: Send) -> None:
        self.actor = actor
        self.streams: direct.Streams | None = None
        self._send = send
        self._sent = 0
        self._taken = 0
        self._early: dict[int, bytes] = {}
        self._ready: asyncio.Queue[bytes | CallFailed] = asyncio.Queue()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_until_lost(self) -> None:
        """Pass answers on until the keeper is lost.

        Raises:
            CallFailed: the keeper is lost; says why.
        """
        try:
            self._call_actor(b"")
            if self.streams is not None:
                self._start_task(self._receive_chunks(self.streams[0]))
            while True:
                data = await self._ready.get()
                if isinstance(data, CallFailed):
                    raise data
                await self._send(cluster_calls.Chunk(data))
        finally:
            for task in self._tasks:
                task.cancel()
            if self.streams is not None:
                self.streams[1].close()

    async def relay_bytes(self, data: bytes) -> None:
        """Send bytes to the keeper, in the order in which this is called."""
        if self.streams is None:
            self._call_actor(data)
            return
        with contextlib.suppress(OSError):
            self.streams[1].write(data)
            await self.streams[1].drain()

    async def _receive_chunks(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await self._send(cluster_calls.Chunk(data))
        # The call under way may still say why.
        await asyncio.sleep(REASON_S)
        self._ready.put_nowait(CallFailed("node_lost", "the connection to its keeper was lost"))

    def _call_actor(self, data: bytes) -> None:
        ref = self.actor.relay_bytes.remote(self._sent, data)
        self._sent += 1
        self._under_way += 1
        self._start_task(self._take_answers(ref))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_answers(self, ref: Any) -> None:
        try:
            number, data = await await_answer(ref, POLL_S + ANSWER_S)
        except CallFailed as error:
            self._ready.put_nowait(error)
            return
        finally:
            self._under_way -= 1
        if data:
            self._early[number] = data
        while self._taken in self._early:
            self._ready.put_nowait(self._early.pop(self._taken))
            self._taken += 1
        if not self._under_way:
            # An actor cannot call back: the next answers need a call to come with.
            self._call_actor(b"")


async def await_answer(ref: Any, deadline_s: float) -> Any:
    """Wait for an actor's answer.

    Raises:
        CallFailed: the actor has ended, or does not answer in time.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await ref
    except TimeoutError:
        raise CallFailed("slow", f"the node did not answer within {deadline_s:.0f} s") from None
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise CallFailed("node_lost", format_error(error), hint=find_hint(error)) from error
