"""The gate between compiles and final rounds: while finalists are measured, no compile runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class QuietGate:
    """Any number may compile at once, or one may have quiet; no compile begins while quiet is waited for."""

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self._compiling = 0
        self._waiting_for_quiet = 0
        self._is_quiet = False

    @property
    def state(self) -> str:
        """``quiet``, ``compiling`` or ``open``, for a status."""
        return "quiet" if self._is_quiet else "compiling" if self._compiling else "open"

    @asynccontextmanager
    async def compiling(self) -> AsyncIterator[None]:
        """Hold the gate for one compile."""
        while self._is_quiet or self._waiting_for_quiet:
            await self._changed.wait()
        self._compiling += 1
        try:
            yield
        finally:
            self._compiling -= 1
            self._notify()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold the gate alone, once the compiles that run now are over."""
        self._waiting_for_quiet += 1
        try:
            while self._is_quiet or self._compiling:
                await self._changed.wait()
            self._is_quiet = True
        finally:
            self._waiting_for_quiet -= 1
            # If it was cancelled, nothing else wakes the compiles that waited for it.
            self._notify()
        try:
            yield
        finally:
            self._is_quiet = False
            self._notify()

    def _notify(self) -> None:
        """Wake all waiters, to check again."""
        self._changed.set()
        self._changed = anyio.Event()
