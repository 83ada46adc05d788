"""The actor on each node: starts one keeper process there, and relays bytes between it and the bridge.

The keeper is a separate process, because the kernel ends a worker with the *thread* that started it, and an actor's
threads come and go. The keeper starts workers from its main thread. It ends with the actor, because its socket closes.

Bytes travel over a direct connection (:mod:`~ktuned_ray.direct`), or else in calls: the bridge sends with one call at a
time (:meth:`KeeperActor.send_bytes`), and another call always waits for answers (:meth:`KeeperActor.receive_bytes`),
because an actor cannot call back. So bytes always arrive in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ktuned_ray import direct, parcels

POLL_S: Final = 10.0
"""Longest wait of one call for answers, so that the call of a killed bridge ends after at most this time."""

_READ_BYTES: Final = 1 << 18

MAX_BYTES: Final = 8 << 20
"""Most bytes that one call returns."""

RAYLET_S: Final = 1.0
"""Interval in seconds at which the actor checks whether the node's raylet is alive."""

_OF_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES")
"""Variables that Ray sets for actors by rules that depend on its version; workers get the node's own values instead."""


class KeeperActor:
    """Holds a node's keeper; its methods run on one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._home = Path()
        self._writer: asyncio.StreamWriter
        self._reader: asyncio.StreamReader
        self._inbox = bytearray()
        self._inbox_changed = asyncio.Event()
        self._end_reason = ""
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
        """Pass the bridge's bytes on until the connection ends. Answers go back over the same connection."""
        with contextlib.suppress(asyncio.CancelledError, OSError):
            reader, self._direct = await listener.connected
            while data := await reader.read(_READ_BYTES):
                self._writer.write(data)
                await self._writer.drain()
        if self._direct is not None:
            # The bridge has ended, or has given up the connection and calls this actor instead.
            self._direct.close()
            self._direct = None

    async def send_bytes(self, data: bytes) -> None:
        """Pass bytes on to the keeper; they are in the order of the calls if each is awaited."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive_bytes(self) -> bytes:
        """Return the keeper's next answers; empty if none came for a while, or a connection carries them.

        Raises:
            RuntimeError: the keeper has ended.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._inbox_changed.wait(), POLL_S)
        answers = bytes(self._inbox[:MAX_BYTES])
        del self._inbox[:MAX_BYTES]
        if self._end_reason and not answers:
            raise RuntimeError(self._end_reason)
        if not self._inbox and not self._end_reason:
            self._inbox_changed.clear()
        return answers

    async def _read_answers(self) -> None:
        while data := await self._reader.read(_READ_BYTES):
            if self._direct is None:
                self._inbox += data
                self._inbox_changed.set()
                continue
            with contextlib.suppress(OSError):
                self._direct.write(data)
                await self._direct.drain()
        assert self._process is not None
        returncode = await asyncio.to_thread(self._process.wait)
        how = f"was killed by signal {-returncode}" if returncode < 0 else f"exited with code {returncode}"
        self._end_reason = f"its keeper {how}"
        self._inbox_changed.set()

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
    """Return the environment in which a node was started: its raylet's, which is the process ``pid``."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def build_environment(own: Mapping[str, str], node: Mapping[str, str]) -> dict[str, str]:
    """Return a keeper's environment: the actor's (with the runtime environment's variables) without Ray's own."""
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
