"""The way to one keeper: a direct connection to its actor, or else calls of the actor that carry bytes both ways.

Even with a connection, one call always waits for answers: when the actor ends, Ray ends that call with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NoReturn

import ray.exceptions

from ktuned.bridge import CallFailed, Send
from ktuned_ray import cluster_calls, direct
from ktuned_ray.failures import find_hint, format_error
from ktuned_ray.keeper_actor import POLL_S

ANSWER_S: Final = 10.0
"""Deadline of an actor's answer, in addition to the actor's own waiting; after it the node counts as lost."""

REASON_S: Final = 5.0
"""How long Ray may take to report why an actor has ended, after the connection to it was lost."""

_READ_BYTES: Final = 1 << 18


class KeeperCalls:
    """Calls of a keeper's ``actor``; its answers go to ``send`` in order. ``streams``, if set, carry all bytes."""

    def __init__(self, actor: Any, send: Send) -> None:
        self.actor = actor
        self.streams: direct.Streams | None = None
        self._send = send
        self._relay_lock = asyncio.Lock()

    async def run_until_lost(self) -> None:
        """Pass answers on until the keeper is lost.

        Raises:
            CallFailed: the keeper is lost; the message says why.
        """
        work = [self._receive_from_actor()]
        if self.streams is not None:
            work.append(self._receive_from_stream(self.streams[0]))
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            if self.streams is not None:
                self.streams[1].close()

    async def relay_bytes(self, data: bytes) -> None:
        """Send bytes to the keeper, in the order in which this is called.

        Raises:
            CallFailed: it is lost.
        """
        async with self._relay_lock:
            if self.streams is None:
                await await_answer(self.actor.send_bytes.remote(data), ANSWER_S)
                return
            with contextlib.suppress(OSError):
                self.streams[1].write(data)
                await self.streams[1].drain()

    async def _receive_from_actor(self) -> NoReturn:
        while True:
            data = await await_answer(self.actor.receive_bytes.remote(), POLL_S + ANSWER_S)
            if data:
                await self._send(cluster_calls.Chunk(data))

    async def _receive_from_stream(self, reader: asyncio.StreamReader) -> NoReturn:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await self._send(cluster_calls.Chunk(data))
        # The waiting call may still report the reason.
        await asyncio.sleep(REASON_S)
        raise CallFailed("node_lost", "the connection to its keeper was lost")


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
