"""Calls of a keeper's actor: what they bring comes in order, and one is always under way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import anyio
import pytest

pytest.importorskip("ray", reason="Ray is not installed; pip install 'ktuned[ray]'")

from ktuned.bridge import CallFailed, cluster
from ktuned_ray.keeper_actor import KeeperActor
from ktuned_ray.keeper_calls import KeeperCalls

pytestmark = pytest.mark.anyio

_ECHO = "import os, sys\nfd = int(sys.argv[1])\nwhile data := os.read(fd, 1000):\n    os.write(fd, data)\n"


class EchoActor(KeeperActor):
    """An actor whose keeper answers with what it is sent."""

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        # A keeper removes it at its end.
        self._home.rmdir()
        return subprocess.Popen([sys.executable, "-c", _ECHO, str(descriptor)], pass_fds=(descriptor,))

    async def close(self) -> None:
        """End what its process would end with."""
        self._writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Actor:
    """An actor whose calls the test answers, in any order."""

    def __init__(self) -> None:
        self.relay = self
        self.calls: list[tuple[int, bytes, asyncio.Future[Any]]] = []

    def remote(self, number: int, data: bytes) -> asyncio.Future[Any]:
        """Begin a call."""
        future = asyncio.get_running_loop().create_future()
        self.calls.append((number, data, future))
        return future


async def test_answers_keep_their_order() -> None:
    """Calls that end in another order than their answers were taken in deliver them as they were taken."""
    actor, taken = Actor(), asyncio.Queue[bytes]()

    async def send(chunk: Any) -> None:
        assert isinstance(chunk, cluster.Chunk)
        taken.put_nowait(chunk.data)

    calls = KeeperCalls(actor, send)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run)
        await anyio.lowlevel.checkpoint()
        calls.relay(b"request")
        assert [(number, data) for number, data, _ in actor.calls] == [(0, b""), (1, b"request")]
        actor.calls[1][2].set_result((1, b"second"))
        await anyio.wait_all_tasks_blocked()
        assert taken.empty()
        actor.calls[0][2].set_result((0, b"first"))
        with anyio.fail_after(5):
            assert [await taken.get(), await taken.get()] == [b"first", b"second"]
            # None was under way: another one is.
            while len(actor.calls) < 3:
                await anyio.lowlevel.checkpoint()
        assert actor.calls[2][:2] == (2, b"")
        tasks.cancel_scope.cancel()


async def test_the_end_of_the_keeper_ends_them() -> None:
    """An actor that says so fails the run with its words."""

    async def send(chunk: Any) -> None:
        return

    calls = KeeperCalls(actor := Actor(), send)
    run = asyncio.ensure_future(calls.run())
    await anyio.lowlevel.checkpoint()
    actor.calls[0][2].set_exception(RuntimeError("its keeper was killed by signal 9"))
    with pytest.raises(CallFailed, match="was killed"):
        await asyncio.wait_for(run, 5)


async def test_the_first_call_that_waits_has_the_answers() -> None:
    """What is passed on is answered by the call that has waited longest; the one that brought it waits on."""
    actor = EchoActor()
    keeper = await actor.start()
    async with asyncio.timeout(20):
        first = asyncio.ensure_future(actor.relay(0, b""))
        await anyio.wait_all_tasks_blocked()
        second = asyncio.ensure_future(actor.relay(1, b"hello"))
        assert await first == (0, b"hello")
        third = asyncio.ensure_future(actor.relay(2, b"again"))
        assert await second == (1, b"again")
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="its keeper was killed by signal 9"):
            await third
    await actor.close()
