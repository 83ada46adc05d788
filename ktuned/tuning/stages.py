"""The stages of a running job, the channels between them, and the job's access to the lanes. Decides nothing.

Jobs overlap so that slots and lanes always have work: while one job measures, the next ones explore and compile. The
job machine decides which job has the lanes. A pipeline reports its stage, and waits for access before each batch.
"""

from __future__ import annotations

from contextlib import suppress
from enum import IntEnum
from time import monotonic
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.protocol import ChannelInfo

T = TypeVar("T")


class JobStage(IntEnum):
    """The stages of a running job, in their order; a job never goes back."""

    EXPLORING = 0
    """The strategy proposes configs, or some configs wait for a compile slot."""

    COMPILING = 1
    """All configs are compiled, or being compiled: the next job may use the idle compile slots."""

    MEASURED = 2
    """All configs are measured, and the finalists wait for the quiet window, in which no job may compile. Several jobs
    share one window."""

    DECIDING = 3
    """The finalists compete, and keep the lanes to themselves."""


def describe_stream(stream: MemoryObjectSendStream[Any]) -> ChannelInfo:
    """Return how full a channel is."""
    now = stream.statistics()
    return ChannelInfo(now.current_buffer_used, int(now.max_buffer_size))


def receive_waiting(first: T, channel: MemoryObjectReceiveStream[T], most: int | None = None) -> list[T]:
    """Return ``first``, which was received already, and items that wait in its channel; in total at most ``most``."""
    received = [first]
    with suppress(anyio.WouldBlock, anyio.EndOfStream):
        while most is None or len(received) < most:
            received.append(channel.receive_nowait())
    return received


class LaneAccess:
    """One job's access to lanes that several running jobs share. It is granted and withdrawn."""

    def __init__(self) -> None:
        self._granted = anyio.Event()
        self._since: float | None = None
        self._earlier_s = 0.0

    @property
    def held_s(self) -> float:
        """The seconds for which the job has had access; its time limit counts only these."""
        return self._earlier_s + (0.0 if self._since is None else monotonic() - self._since)

    @property
    def is_granted(self) -> bool:
        """True while the job may measure."""
        return self._since is not None

    def grant_lanes(self) -> None:
        """Let the job measure."""
        if not self.is_granted:
            self._since = monotonic()
            self._granted.set()

    def withdraw_lanes(self) -> None:
        """Let the job begin no further batch."""
        if self._since is not None:
            self._earlier_s, self._since = self.held_s, None
            self._granted = anyio.Event()

    async def await_lanes(self) -> None:
        """Wait until the job may measure."""
        while not self.is_granted:
            await self._granted.wait()
