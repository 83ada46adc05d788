"""Calls of one keeper's actor: each takes bytes there and brings answers back, so that an exchange is one call.

A call of an actor costs half a millisecond of CPU on each side, whatever it carries.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import ray.exceptions

from ktuned.bridge import CallFailed, Send, cluster
from ktuned_ray.failures import hint_of, line_of
from ktuned_ray.keeper_actor import POLL_S

ANSWER_S: Final = 10.0
"""Time for an actor's answer beyond what it waits itself; longer, and its node is taken for lost."""


class KeeperCalls:
    """The calls of a keeper's ``actor`` under way, at least one; their answers go to ``send`` in order."""

    def __init__(self, actor: Any, send: Send) -> None:
        self.actor = actor
        self._send = send
        self._sent = 0
        self._taken = 0
        self._early: dict[int, bytes] = {}
        self._ready: asyncio.Queue[bytes | CallFailed] = asyncio.Queue()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Pass answers on until the keeper is lost.

        Raises:
            CallFailed: it is; says how.
        """
        try:
            self.relay(b"")
            while True:
                data = await self._ready.get()
                if isinstance(data, CallFailed):
                    raise data
                await self._send(cluster.Chunk(data))
        finally:
            for task in self._tasks:
                task.cancel()

    def relay(self, data: bytes) -> None:
        """Send bytes to the keeper, in the order of these calls."""
        ref = self.actor.relay.remote(self._sent, data)
        self._sent += 1
        self._under_way += 1
        task = asyncio.ensure_future(self._await(ref))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, ref: Any) -> None:
        try:
            number, data = await answer(ref, POLL_S + ANSWER_S)
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
            # The next answers need a call to come with.
            self.relay(b"")


async def answer(ref: Any, deadline_s: float) -> Any:
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
        raise CallFailed("node_lost", line_of(error), hint=hint_of(error)) from error
