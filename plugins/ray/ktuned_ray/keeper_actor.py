"""The actor on each node: starts one keeper process there, and relays bytes between it and the bridge.

The keeper starts the workers, from its main thread: the kernel ends a worker with the thread that started it, and an
actor's threads come and go. It ends when the actor does, because its socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final

from ktuned.bridge import parcels

POLL_S: Final = 10.0
"""Longest wait of one call for answers: a bridge that was killed leaves no call behind for longer."""

LINGER_S: Final = 0.002
"""Time that answers wait for others where the last went less than this ago: each call of an actor costs half a
millisecond. An answer that comes alone waits for nothing."""

MAX_BYTES: Final = 8 << 20
"""Bytes that one call returns."""

RAYLET_S: Final = 1.0
"""Interval of looks whether the node's raylet lives."""

END_S: Final = 10.0
"""Time for a keeper to end its workers."""

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
        self._news = asyncio.Event()
        self._sent = asyncio.Lock()
        self._next = 0
        self._turn = asyncio.Condition()
        self._end = ""
        self._answered_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        """Start the keeper; return its process id."""
        self._home = Path(tempfile.mkdtemp(prefix="ktuned-keeper-"))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs.fileno())
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._end_with_node(os.getppid()))]
        return self._process.pid

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ktuned.fleet.keeper", str(descriptor), str(self._home)],
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            start_new_session=True,
            cwd=self._home,
            env=environment(os.environ, node_environment(os.getppid())),
        )

    async def send(self, number: int, data: bytes) -> None:
        """Pass calls on to the keeper; ``number`` counts up from 0, and is their order."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._next == number)
            self._writer.write(data)
            self._next += 1
            self._turn.notify_all()
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the keeper's next answers, or nothing after a while.

        Raises:
            RuntimeError: it has ended.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), POLL_S)
        wait_s = self._answered_at + 2 * LINGER_S - monotonic()
        if self._inbox and not self._end and wait_s > 0:
            await asyncio.sleep(min(wait_s, LINGER_S))
        self._answered_at = monotonic()
        data = bytes(self._inbox[:MAX_BYTES])
        del self._inbox[:MAX_BYTES]
        if not self._inbox and not self._end:
            self._news.clear()
        if not data and self._end:
            raise RuntimeError(self._end)
        return data

    async def _read(self) -> None:
        while data := await self._reader.read(1 << 18):
            self._inbox += data
            self._news.set()
        assert self._process is not None
        returncode = await asyncio.to_thread(self._process.wait)
        how = f"was killed by signal {-returncode}" if returncode < 0 else f"exited with code {returncode}"
        self._end = f"its keeper {how}"
        self._news.set()

    async def _end_with_node(self, raylet: int) -> None:
        """End this process with its node.

        Ray does so only where process 1 becomes the parent: not below systemd's user manager, or any other subreaper.
        """
        while os.getppid() == raylet:  # noqa: ASYNC110 - no event reports another parent
            await asyncio.sleep(RAYLET_S)
        # The keeper ends its workers when its socket closes.
        os._exit(1)

    def take(self, parcel: Mapping[str, bytes]) -> None:
        """Put parcels where the keeper finds them."""
        for name, data in parcel.items():
            parcels.unpack(name, data, self._home)

    def take_one(self, name: str, data: bytes) -> None:
        """Put one parcel there, whose bytes come from Ray's object store."""
        self.take({name: data})

    def pack(self, name: str) -> bytes:
        """Return a parcel's bytes."""
        return parcels.pack(parcels.place_of(name, self._home))

    async def end(self) -> None:
        """End the keeper and all of its workers."""
        if self._process is None:
            return
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), END_S)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def node_environment(pid: int) -> Mapping[str, str]:
    """Return the environment that a node was started with: its raylet's, the parent of all of its actors."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def environment(own: Mapping[str, str], node: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a keeper: the actor's, with a runtime environment's variables, without Ray's rules."""
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
