"""A compile slot: a turn of a machine's compile slots, and the machine's gate between compiles and timing.

A compiler that waits for a pipe, a lock or a server uses no processor, and may do so until its deadline passes. It
would hold up other projects: their compiles wait for its slot, and timings on all cores for its end. So once neither
the worker nor its children have used a processor for :data:`STALL_S`, the slot goes to others while the compile goes
on. If it finds work again, one compile more than there are slots is under way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import structlog

from ktuned.fleet.executor import Worker
from ktuned.fleet.priority_semaphore import Turn, Turns
from ktuned.fleet.quiet import GatePass, QuietGate

STALL_S = 3.0
"""Seconds without any processor time after which a compile counts as stalled. A read from a cold disk takes less."""

_log = structlog.get_logger()


class CompileSlot:
    """A compile slot that a group of configs holds."""

    def __init__(self, turn: Turn, gate_pass: GatePass, gate: AsyncExitStack) -> None:
        self._worker: Worker | None = None
        self._turn = turn
        self._gate_pass = gate_pass
        self._gate = gate
        self._known = (0, 0)
        self._known_since = 0.0

    @contextmanager
    def lend_to(self, worker: Worker) -> Iterator[None]:
        """Let a worker compile the group during the block. It may be paused, and its progress is checked."""
        self._worker = worker
        try:
            with self._gate_pass.allow_pause(worker):
                yield
        finally:
            self._worker = None

    def give_back(self) -> None:
        """Give the slot to the next compile: the compiler is done, although sealing may still take a moment."""
        self._turn.give_back()

    async def check_progress(self, now: float) -> None:
        """Give slot and gate to others if the worker has made no progress for :data:`STALL_S`; ``now`` is monotonic."""
        worker = self._worker
        if worker is None or self._turn.is_aside:
            return
        ticks = worker.read_cpu_ticks()
        if ticks is None or (worker.pid, ticks) != self._known or self._gate_pass.is_paused:
            self._known, self._known_since = (worker.pid, ticks or 0), now
        elif now - self._known_since >= STALL_S and self._turn.set_aside():
            _log.info("compile_stalled", pid=worker.pid)
            await self._gate.aclose()


@asynccontextmanager
async def hold_compile_slot(turns: Turns, gate: QuietGate, job: int) -> AsyncIterator[CompileSlot]:
    """Wait for a compile slot, and hold it for the block."""
    # The slot first, then the gate: a job that only waits for a slot must not delay another job's quiet window.
    async with turns.hold_turn(job) as turn, AsyncExitStack() as held:
        gate_pass = await held.enter_async_context(gate.hold_for_compile())
        yield CompileSlot(turn, gate_pass, held)
