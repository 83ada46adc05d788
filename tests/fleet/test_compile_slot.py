"""A compile slot whose worker makes no progress goes to others."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import cast

import anyio
import pytest

from ktuned.fleet import QuietGate, Turns, Worker
from ktuned.fleet.compile_slot import STALL_S, hold_compile_slot
from tests.fleet.test_quiet import PausableWorker

pytestmark = pytest.mark.anyio


class MeteredWorker:
    """A worker with a processor time that the test sets."""

    can_pause = False

    def __init__(self, ticks: int | None = 0) -> None:
        self.pid = 1
        self.ticks = ticks

    def read_cpu_ticks(self) -> int | None:
        """Return the processor time."""
        return self.ticks


class PausableMeteredWorker(PausableWorker, MeteredWorker):
    """A worker that can be paused, and reports no progress."""

    def __init__(self) -> None:
        PausableWorker.__init__(self)
        MeteredWorker.__init__(self)


async def test_a_stalled_compile_gives_slot_and_gate_to_others() -> None:
    """After some seconds without processor time the next compile begins, and finalists find it quiet."""
    turns, gate, worker = Turns(), QuietGate(2), MeteredWorker()
    async with hold_compile_slot(turns, gate, 1) as slot, AsyncExitStack() as request:
        request.enter_context(slot.lend_to(cast(Worker, worker)))
        for now in (0.0, STALL_S - 0.1):
            await slot.check_progress(now)
        assert turns.is_full
        worker.ticks = 1
        for now in (STALL_S, 2 * STALL_S - 0.1):
            await slot.check_progress(now)
        assert turns.is_full
        await slot.check_progress(2 * STALL_S)
        with anyio.fail_after(10):
            async with gate.hold_quiet():
                pass
            async with hold_compile_slot(turns, gate, 2):
                assert gate.state == "compiling"
    assert (turns.borrowed_tokens, gate.state) == (0, "open")


async def test_a_worker_of_unknown_progress_keeps_its_slot() -> None:
    """A worker on another machine reports no processor time, and so does a slot without a request."""
    turns, gate = Turns(), QuietGate(2)
    async with hold_compile_slot(turns, gate, 1) as slot:
        await slot.check_progress(2 * STALL_S)
        with slot.lend_to(cast(Worker, MeteredWorker(None))):
            for now in (0.0, 2 * STALL_S):
                await slot.check_progress(now)
        assert (turns.is_full, gate.state) == (True, "compiling")


async def test_a_paused_compile_keeps_its_slot() -> None:
    """It uses no processor while it is quiet, and is not stalled."""
    turns, gate = Turns(), QuietGate(2)
    async with hold_compile_slot(turns, gate, 1) as slot:
        with slot.lend_to(cast(Worker, PausableMeteredWorker())):
            await slot.check_progress(0.0)
            with anyio.fail_after(10):
                async with gate.hold_quiet():
                    await slot.check_progress(2 * STALL_S)
            await slot.check_progress(3 * STALL_S - 0.1)
            assert (turns.is_full, gate.state) == (True, "compiling")
            await slot.check_progress(3 * STALL_S)
        assert not turns.is_full
