"""The actor on each node: starts one keeper process there, and relays bytes between it and the bridge.

Why a process of its own: the kernel ends a worker with the *thread* that started it, and an actor's threads come and
go. The keeper starts workers from its main thread. It ends when the actor does, because its socket closes.

Bytes travel over a direct connection (:mod:`~ktuned_ray.direct`), or else in calls of :meth:`KeeperActor.relay_bytes`.
An actor cannot call back, so the bridge always has some calls waiting here, and answers go to the one that has waited
longest. Ray may run calls in another order than they were made: each has a number for what it brings, and each answer
has a place in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ktuned_ray import direct, parcels

POLL_S: Final = 10.0
"""Longest wait of one call for answers: a bridge that was killed leaves no call behind for longer."""

MAX_WAITING: Final = 32
"""Calls that wait for answers at once. With more the first returns empty, long before Ray's limit of running calls."""

_READ_BYTES: Final = 1 << 18

MAX_BYTES: Final = 8 << 20
"""Bytes that one call returns."""

RAYLET_S: Final = 1.0
"""Interval in seconds at which the actor looks whether the node's raylet lives."""

_OF_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES")
"""Variables that Ray sets for actors by rules that differ by version; workers get the node's own."""


class KeeperActor:
    """Holds a node's keeper; its methods run on one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._home = Path()
        self._writer: asyncio.StreamWriter
        self._reader: asyncio.StreamReader
        self._inbox = bytearray()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken_soon = False
        self._taken = 0
        self._next = 0
        self._turn = asyncio.Condition()
        self._end = ""
        self._listener: direct.Listener | None = None
        self._direct: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start_keeper(self) -> int:
        """Start the keeper; return its process id."""
        self._home = Path(tempfile.mkdtemp(prefix="ktuned-keeper-"))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn_keeper(theirs.fileno())
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read_answers()), loop.create_task(self._end_with_node(os.getppid()))]
        return self._process.pid

    def _spawn_keeper(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ktuned_ray.keeper", str(descriptor), str(self._home)],
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            start_new_session=True,
            cwd=self._home,
            env=build_environment(os.environ, read_node_environment(os.getppid())),
        )

    async def listen_for_bridge(self, secret: bytes, host: str = "") -> tuple[str, int]:
        """Listen for the bridge, which connects before it relays anything; return host and port."""
        if not host:
            import ray

            host = str(ray.util.get_node_ip_address())
        self._listener = direct.Listener(secret)
        port = await self._listener.start_listening(host)
        self._tasks.append(asyncio.get_running_loop().create_task(self._pass_on_stream(self._listener)))
        return host, port

    async def _pass_on_stream(self, listener: direct.Listener) -> None:
        """Pass on what the bridge sends over the connection, until that ends. Answers go back the same way."""
        with contextlib.suppress(asyncio.CancelledError, OSError):
            reader, self._direct = await listener.connected
            while data := await reader.read(_READ_BYTES):
                self._writer.write(data)
                await self._writer.drain()
        if self._direct is not None:
            # The bridge has ended, or it gave the connection up and calls this actor instead.
            self._direct.close()
            self._direct = None

    async def relay_bytes(self, number: int, data: bytes) -> tuple[int, bytes]:
        """Pass bytes on to the keeper, then wait for its next answers.

        Args:
            number: The place of ``data`` in the stream to the keeper, from 0.
            data: Bytes for the keeper; may be empty.

        Returns:
            The answers' place in the stream from the keeper, and their bytes. Empty if none came for a while.

        Raises:
            RuntimeError: the keeper has ended.
        """
        await self._pass_on_calls(number, data)
        if not self._inbox and not self._end:
            await self._wait_for_answers()
        self._is_taken_soon = False
        answers = bytes(self._inbox[:MAX_BYTES])
        del self._inbox[:MAX_BYTES]
        if not answers and self._end:
            raise RuntimeError(self._end)
        if self._inbox or self._end:
            self._wake_first()
        place = self._taken
        self._taken += bool(answers)
        return place, answers

    async def _wait_for_answers(self) -> None:
        """Wait for answers in the order of the calls."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if len(self._waiting) > MAX_WAITING:
            self._release_first()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter, POLL_S)
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)

    def _wake_first(self) -> None:
        """Let the first call that waits take the answers, unless one is about to."""
        if not self._is_taken_soon:
            self._is_taken_soon = self._release_first()

    def _release_first(self) -> bool:
        """Let the call that has waited longest return; return whether there is one."""
        while self._waiting:
            first = self._waiting.popleft()
            # A call whose time is over may still be in the queue.
            if not first.done():
                first.set_result(None)
                return True
        return False

    async def _pass_on_calls(self, number: int, data: bytes) -> None:
        async with self._turn:
            await self._turn.wait_for(lambda: self._next == number)
            self._writer.write(data)
            self._next += 1
            self._turn.notify_all()
        await self._writer.drain()

    async def _read_answers(self) -> None:
        while data := await self._reader.read(_READ_BYTES):
            if self._direct is None:
                self._inbox += data
                self._wake_first()
                continue
            with contextlib.suppress(OSError):
                self._direct.write(data)
                await self._direct.drain()
        assert self._process is not None
        returncode = await asyncio.to_thread(self._process.wait)
        how = f"was killed by signal {-returncode}" if returncode < 0 else f"exited with code {returncode}"
        self._end = f"its keeper {how}"
        self._wake_first()

    async def _end_with_node(self, raylet: int) -> None:
        """End this process with its node.

        Ray does so only where process 1 becomes the parent: not below systemd's user manager, or any other subreaper.
        """
        while os.getppid() == raylet:  # noqa: ASYNC110 - no event reports another parent
            await asyncio.sleep(RAYLET_S)
        # This closes the keeper's socket, and the keeper ends its workers.
        os._exit(1)

    def take_parcels(self, parcel: Mapping[str, bytes]) -> None:
        """Put parcels where the keeper finds them."""
        for name, data in parcel.items():
            parcels.unpack_parcel(name, data, self._home)

    def take_parcel(self, name: str, data: bytes) -> None:
        """Put one parcel where the keeper finds it; its bytes come from Ray's object store."""
        self.take_parcels({name: data})

    def pack_parcel(self, name: str) -> bytes:
        """Return a parcel's bytes."""
        return parcels.pack_parcel(parcels.parcel_path(name, self._home))


def read_node_environment(pid: int) -> Mapping[str, str]:
    """Return the environment that a node was started with: that of its raylet, the process ``pid``."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def build_environment(own: Mapping[str, str], node: Mapping[str, str]) -> dict[str, str]:
    """Return a keeper's environment: the actor's, which has the runtime environment's variables, without Ray's own."""
    kept: dict[str, Any] = {name: value for name, value in own.items() if not name.startswith("RAY_")}
    for name in _OF_RAY:
        kept.pop(name, None)
        if name in node:
            kept[name] = node[name]
    # Ray puts the directories of its own packages and of its job there.
    kept.pop("PYTHONPATH", None)
    if "PYTHONPATH" in node:
        kept["PYTHONPATH"] = node["PYTHONPATH"]
    return kept
