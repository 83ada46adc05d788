"""The way to a keeper: calls of its actor, or a connection; either brings all bytes in order, and says why it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed; pip install 'ktuned[ray]'")

from ktuned.bridge import CallFailed
from ktuned_ray import cluster_calls, direct
from ktuned_ray.keeper_actor import KeeperActor
from ktuned_ray.keeper_calls import KeeperCalls

pytestmark = pytest.mark.anyio

SECRET = b"s" * direct.SECRET_BYTES

_ECHO = "import os, sys\nfd = int(sys.argv[1])\nwhile data := os.read(fd, 1000):\n    os.write(fd, data)\n"


class EchoActor(KeeperActor):
    """An actor whose keeper answers with what it is sent."""

    def _spawn_keeper(self, descriptor: int) -> subprocess.Popen[bytes]:
        # A keeper removes it at its end.
        self._home.rmdir()
        return subprocess.Popen([sys.executable, "-c", _ECHO, str(descriptor)], pass_fds=(descriptor,))

    async def close(self) -> None:
        """End what its process would end with."""
        self._writer.close()
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Remote:
    """A method of an actor in this process, as it is called from the bridge."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._method = method

    def remote(self, *given: Any) -> asyncio.Future[Any]:
        """Begin a call."""
        return asyncio.ensure_future(self._method(*given))


def remote_actor(actor: EchoActor) -> Any:
    """Return the actor as the bridge has it."""
    return SimpleNamespace(send_bytes=Remote(actor.send_bytes), receive_bytes=Remote(actor.receive_bytes))


async def test_calls_carry_the_bytes_in_order() -> None:
    """Without a connection calls of the actor bring what is sent, and all answers; the last one says why it ended."""
    actor, taken = EchoActor(), asyncio.Queue[bytes]()
    keeper = await actor.start_keeper()

    async def send(chunk: Any) -> None:
        assert isinstance(chunk, cluster_calls.Chunk)
        taken.put_nowait(chunk.data)

    async with asyncio.timeout(20):
        calls = KeeperCalls(remote_actor(actor), send)
        run = asyncio.ensure_future(calls.run_until_lost())
        parts = [bytes([number]) * 700 for number in range(50)]
        await asyncio.gather(*map(calls.relay_bytes, parts))
        answered = b""
        while len(answered) < 700 * 50:
            answered += await taken.get()
        assert answered == b"".join(parts)
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(CallFailed, match="its keeper was killed by signal 9"):
            await run
    await actor.close()


async def test_a_connection_carries_the_bytes() -> None:
    """Once the bridge has connected no call of the actor brings answers; the one under way says why it ended."""
    actor, taken = EchoActor(), asyncio.Queue[bytes]()
    keeper = await actor.start_keeper()

    async def send(chunk: Any) -> None:
        taken.put_nowait(chunk.data)

    async with asyncio.timeout(20):
        host, port = await actor.listen_for_bridge(SECRET, "127.0.0.1")
        calls = KeeperCalls(remote_actor(actor), send)
        calls.streams = await direct.connect_to_actor(host, port, SECRET)
        run = asyncio.ensure_future(calls.run_until_lost())
        await calls.relay_bytes(b"over")
        await calls.relay_bytes(b" there")
        said = b""
        while said != b"over there":
            said += await taken.get()
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(CallFailed, match="its keeper was killed by signal 9"):
            await run
    await actor.close()


async def test_a_stranger_is_refused() -> None:
    """Without the secret there is no connection, for either side, and the bridge still gets its own."""
    listener = direct.Listener(SECRET)
    async with asyncio.timeout(20):
        port = await listener.start_listening("127.0.0.1")
        with pytest.raises(direct.NoDirectConnection):
            await direct.connect_to_actor("127.0.0.1", port, b"another")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(2 * direct.SECRET_BYTES))
        # A nonce, and no more.
        assert len(await reader.read()) == direct.SECRET_BYTES
        writer.close()
        _, ours = await direct.connect_to_actor("127.0.0.1", port, SECRET)
        _, theirs = await listener.connected
        with pytest.raises(direct.NoDirectConnection):
            await direct.connect_to_actor("127.0.0.1", port, SECRET)
    for one in (ours, theirs):
        one.close()


async def test_a_false_keeper_is_refused() -> None:
    """The bridge sends nothing but its proof to what does not know the secret."""
    heard = asyncio.Queue[bytes]()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(2 * direct.SECRET_BYTES))
        heard.put_nowait(await reader.read())
        writer.close()

    async with asyncio.timeout(20), await asyncio.start_server(pretend, "127.0.0.1", 0) as server:
        with pytest.raises(direct.NoDirectConnection, match="does not know the secret"):
            await direct.connect_to_actor("127.0.0.1", server.sockets[0].getsockname()[1], SECRET)
        said = await heard.get()
    assert len(said) == 2 * direct.SECRET_BYTES
    assert SECRET not in said


async def test_the_listener_closes_when_no_bridge_comes() -> None:
    """A bridge that does not come leaves no open port behind."""
    listener = direct.Listener(SECRET)
    port = await listener.start_listening("127.0.0.1", wait_s=0.0)
    with pytest.raises(asyncio.CancelledError):
        await listener.connected
    with pytest.raises(direct.NoDirectConnection):
        await direct.connect_to_actor("127.0.0.1", port, SECRET)


def test_encrypted_clusters_are_not_bypassed() -> None:
    """Where Ray encrypts what it sends, all goes its way."""
    assert direct.is_allowed({})
    assert direct.is_allowed({"RAY_USE_TLS": "0"})
    assert not direct.is_allowed({"RAY_USE_TLS": "1"})
