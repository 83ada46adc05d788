"""Link to the keeper of one node: calls over the bridge, heartbeats, and the reason for the link's end.

Calls are frames in a queue, which a task relays through the bridge in the order of the calls; with too much in the
queue new calls wait. The link is up when the keeper has described its node, and lost when the bridge's call ends or the
keeper is silent for :data:`SILENCE_S`. A lost link never comes back: its calls fail with the reason, and the cluster
makes another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio
import structlog

from ktuned.bridge import Call, CallFailed, Hello
from ktuned.fleet import Bridge, BridgeDown, BridgeSlow, Calls
from ktuned.ipc import InvalidMessage, frames
from ktuned.model import find_first_error
from ktuned_ray import cluster_calls, node_calls

_log = structlog.get_logger()

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item

ATTACH_S: Final = 120.0
"""Deadline for a keeper to take calls; Ray may have to install a runtime environment first."""

CALL_S: Final = 30.0
"""Deadline for an answer of the bridge or a keeper that needs no work."""

BEAT_S: Final = 5.0
SILENCE_S: Final = 20.0
"""Interval of a keeper's heartbeats, and the silence after which the link is given up: the keeper hangs, or the network
is cut."""

MAX_WAITING_BYTES: Final = 32 << 20
"""Most bytes that may wait for the bridge: two frames."""

MAX_RELAYED_BYTES: Final = 4 << 20
"""Most bytes that are relayed with one call."""


class NodeLink:
    """The keeper of a node while it lives. :meth:`run_until_lost` starts it, and returns the reason why it ended."""

    def __init__(self, bridge: Bridge, info: cluster_calls.NodeInfo) -> None:
        self.info = info
        self.report: node_calls.NodeReport | None = None
        self.reason = ""
        self._bridge = bridge
        self._calls = Calls(f"the keeper on {info.name}", self._queue_bytes, self._wait_for_room)
        self._outbox = bytearray()
        self._bytes_queued = anyio.Event()
        self._room_made = anyio.Event()
        self._attached = anyio.Event()
        self._fault = ""

    @property
    def is_up(self) -> bool:
        """True while its keeper takes calls."""
        return self.report is not None and not self.reason

    @property
    def cores(self) -> int:
        """The cores that workers may use there: as many as Ray counts, but at most as many as the node has."""
        cores = self.info.cpus if self.report is None else min(self.info.cpus, self.report.cores)
        return max(1, cores)

    def find_gpu_id(self, index: int) -> str:
        """Return Ray's id of the GPU that workers there call by an index."""
        visible = () if self.report is None else self.report.gpus
        return visible[index] if index < len(visible) else str(index)

    async def run_until_lost(self, on_up: Callable[[NodeLink], None]) -> str:
        """Keep the link until it is lost; return why. ``on_up`` is called when the keeper takes calls."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._relay_queued_bytes)
                tasks.start_soon(self._watch_keeper, on_up)
                await self._bridge.call_service(cluster_calls.Attach(self.info.id), math.inf, on_item=self._take_chunk)
        except* (BridgeDown, BridgeSlow, CallFailed, _LinkLost) as group:
            self.reason = self._fault or str(find_first_error(group))
        finally:
            self.reason = self.reason or "the daemon has left it"
            self._calls.fail_all(self.reason)
        return self.reason

    async def call_keeper(self, call: Call[R, I], deadline_s: float, on_item: Callable[[I], None] | None = None) -> R:
        """Call the keeper.

        Raises:
            BridgeDown: the link is lost.
            BridgeSlow: the deadline passed.
            CallFailed: the keeper reports a failure.
        """
        if self.reason:
            raise BridgeDown(self.reason)
        return await self._calls.send_call(call, deadline_s, on_item)

    def _take_chunk(self, chunk: cluster_calls.Chunk) -> None:
        self._attached.set()
        try:
            self._calls.feed(chunk.data)
        except (frames.FrameError, InvalidMessage) as error:
            self._fault = f"its keeper sent what is no answer: {error}"

    def _queue_bytes(self, data: bytes) -> None:
        if self.reason:
            raise BridgeDown(self.reason)
        self._outbox += data
        self._bytes_queued.set()

    async def _wait_for_room(self) -> None:
        while len(self._outbox) > MAX_WAITING_BYTES:
            await self._room_made.wait()

    async def _relay_queued_bytes(self) -> None:
        await self._attached.wait()
        while True:
            await self._bytes_queued.wait()
            data = bytes(self._outbox[:MAX_RELAYED_BYTES])
            del self._outbox[:MAX_RELAYED_BYTES]
            if not self._outbox:
                self._bytes_queued = anyio.Event()
            await self._bridge.post_call(cluster_calls.Relay(self.info.id, data), CALL_S)
            self._room_made.set()
            self._room_made = anyio.Event()

    async def _watch_keeper(self, on_up: Callable[[NodeLink], None]) -> None:
        self.report = await self._ask_keeper(node_calls.Describe(), ATTACH_S)
        on_up(self)
        while True:
            await anyio.sleep(BEAT_S)
            await self._ask_keeper(Hello(), SILENCE_S)

    async def _ask_keeper(self, call: Call[R, Any], deadline_s: float) -> R:
        try:
            return await self._calls.send_call(call, deadline_s)
        except BridgeSlow:
            raise _LinkLost(f"its keeper gave no sign of life for {deadline_s:.0f} s") from None


class _LinkLost(Exception):
    """The link is given up; the message says why."""
