"""Paces the work on results: one step in each round of the event loop.

A group of commits, or one message from another host, wakes dozens of tasks at once. The loop would run them all before
it polls its sockets again, and every lookup would wait for all of them. With a pace, a lookup waits for one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """Lets tasks continue one by one, first come, first served. A task continues at once if no other one waits."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_step_taken = False

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for their step."""
        return len(self._waiting)

    async def wait_for_step(self) -> None:
        """Wait for a round of the loop without another task's step. The step lasts until this task waits again."""
        loop = asyncio.get_running_loop()
        if not self._is_step_taken:
            self._is_step_taken = True
            loop.call_soon(self._grant_next_step, loop)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _grant_next_step(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                loop.call_soon(self._grant_next_step, loop)
                return
        self._is_step_taken = False
