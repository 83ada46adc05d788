"""The gate between compiling and deciding: stories of tasks that enter, leave and give up, and who is in meanwhile."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from ktuned.fleet.executor import Worker
from ktuned.fleet.quiet import QuietGate
from tests.fleet.playground import DEADLINE_S

pytestmark = pytest.mark.anyio

STORIES = {
    "any number may compile": "+c1 +c2 +c3: c1 c2 c3 compiling; -c1 -c2 -c3: open",
    "quiet begins after the last compile, and later compiles after it": (
        "+c1 +c2 +q +c3: c1 c2 compiling; -c1: c2 compiling; -c2: q quiet; -q: c3 compiling"
    ),
    "two deciding jobs do not disturb each other": "+q1 +q2 +c: q1 quiet; -q1: q2 quiet; -q2: c compiling",
    "giving up the wait for quiet lets compiles begin": "+c1 +q +c2: c1 compiling; !q: c1 c2 compiling",
    "a cancelled compile frees the gate": "+c +q: c compiling; !c: q quiet; -q: open",
    "a cancelled quiet window frees the gate": "+q1 +q2: q1 quiet; !q1: q2 quiet; -q2: open",
    "a compile that gives up waiting is forgotten": "+q1 +c: q1 quiet; !c -q1: open; +q2: q2 quiet",
    "a timing on all cores waits for the last compile and start, and later compiles for it": (
        "2 cores: open; +c1 +s +t2 +c2: c1 s compiling; -c1: s open; -s: t2 timing +1; -t2: c2 compiling"
    ),
    "compiles keep to the cores that a timing leaves": (
        "4 cores: open; +c1 +c2 +c3 +t3 +c4: c1 c2 c3 t3 timing +2; "
        "-c1 -c2 -c3: t3 c4 timing +2; +c5: t3 c4 timing +2; -t3: c4 c5 compiling"
    ),
    "a timing on one core waits for a timing on all cores alone": (
        "2 cores: open; +c +t1 +t1b: c t1 t1b compiling; +t9 -c -t1: t1b open; -t1b: t9 timing +1; "
        "+t1c: t9 timing +1; -t9: t1c open"
    ),
    "a strategy runs before or after a timing on all cores": (
        "2 cores: open; +p1 +t2: p1 open; -p1: t2 timing +1; +p2: t2 timing +1; -t2: p2 open"
    ),
    "what a person waits for is delayed a moment": "2 cores: open; +t2: t2 timing +1; +i: t2 i timing +1",
    "finalists on a GPU delay no strategy": "2 cores: open; +q +p: q p quiet",
    "finalists on many cores need no second quiet": "2 cores: open; +c +q +t2: c compiling; -c: q t2 quiet +1",
    "a timing that gives up waiting holds nothing back": "2 cores: open; +c1 +t2 !t2 +c2: c1 c2 compiling",
    "quiet pauses the compiles": "+w1 +w2 +q +c: W1 W2 q quiet; -q: w1 w2 c compiling",
    "quiet waits for what cannot be paused": "+w +c +q: w c compiling; -c: W q quiet; -q: w compiling",
    "a compile may end while it is paused": "+w +q: W q quiet; -w: q quiet; -q: open",
    "a cancelled quiet window lets compiles go on": "+w +q: W q quiet; !q: w compiling",
    "one quiet window follows another": "+w +q1 +q2: W q1 quiet; -q1: W q2 quiet; -q2: w compiling",
    "a paused compile waits until a timing leaves it a core": (
        "2 cores: open; +w +q +t2: W q t2 quiet +1; -q: W t2 timing +1; -t2: w compiling"
    ),
    "of the paused compiles as many go on as a timing leaves cores": (
        "4 cores: open; +w1 +w2 +q +t3: W1 W2 q t3 quiet +2; -q: w1 W2 t3 timing +2; -t3: w1 w2 compiling"
    ),
}
"""Steps of ``actions: who is in, and the gate's state``. A task enters (+), leaves (-) or is cancelled (!). Its first
letter says what it does: compile, compile by a worker that can be paused (w, and W while it is), quiet, start, propose,
propose impatiently (i), or time on so many cores (t2).
"""


class PausableWorker:
    """A worker that knows whether it is paused."""

    can_pause = True

    def __init__(self) -> None:
        self.is_paused = False

    def pause_work(self) -> None:
        """Pause it; it must run."""
        assert not self.is_paused
        self.is_paused = True

    def resume_work(self) -> None:
        """Let it go on; it must be paused."""
        assert self.is_paused
        self.is_paused = False


class Gate:
    """A gate and the tasks around it."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self.gate = QuietGate()
        self.moves: list[int] = []
        self.inside: list[str] = []
        self._workers: dict[str, PausableWorker] = {}
        self._leave: dict[str, anyio.Event] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    def set_cores(self, cores: int) -> None:
        self.gate = QuietGate(cores, on_extra_cores=lambda: self.moves.append(self.gate.extra_cores))

    def _enter(self, task: str) -> AbstractAsyncContextManager[object]:
        match task[0]:
            case "w":
                return self._compile_by_worker(task)
            case "c":
                return self.gate.hold_for_compile()
            case "q":
                return self.gate.hold_quiet()
            case "p":
                return self.gate.hold_for_computing()
            case "i":
                return self.gate.hold_for_computing(patience_s=0.0)
            case "s":
                return self._start_worker()
            case _:
                return self._time_config(int(task[1]))

    @asynccontextmanager
    async def _compile_by_worker(self, task: str) -> AsyncIterator[None]:
        worker = self._workers[task] = PausableWorker()
        async with self.gate.hold_for_compile() as gate_pass:
            with gate_pass.allow_pause(cast(Worker, worker)):
                yield
            assert not worker.is_paused

    @asynccontextmanager
    async def _start_worker(self) -> AsyncIterator[None]:
        with self.gate.hold_for_start():
            yield

    @asynccontextmanager
    async def _time_config(self, cores: int) -> AsyncIterator[None]:
        reserved = await self.gate.reserve_cores(cores)
        assert reserved == min(cores, 2) or cores == 3
        yield
        self.gate.release_cores(reserved)

    async def _hold(self, task: str) -> None:
        with self._scopes[task]:
            async with self._enter(task):
                self.inside.append(task)
                try:
                    await self._leave[task].wait()
                finally:
                    self.inside.remove(task)

    async def act(self, action: str) -> None:
        """Carry out one action; return when every task has run as far as it can."""
        task = action[1:]
        if action[0] == "+":
            self._leave[task], self._scopes[task] = anyio.Event(), anyio.CancelScope()
            self._tasks.start_soon(self._hold, task)
        elif action[0] == "-":
            self._leave[task].set()
        else:
            self._scopes[task].cancel()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()

    def describe(self) -> str:
        """Return who is in, the gate's state, and the cores that timings have beyond one each, as last reported."""
        inside = [
            task.upper() if task in self._workers and self._workers[task].is_paused else task for task in self.inside
        ]
        return " ".join([*inside, self.gate.state, *(f"+{cores}" for cores in self.moves[-1:] if cores)])


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_who_is_in(story: str) -> None:
    async with anyio.create_task_group() as tasks:
        gate = Gate(tasks)
        for step in story.split("; "):
            actions, _, expected = step.partition(": ")
            if actions.endswith("cores"):
                gate.set_cores(int(actions[0]))
                continue
            for action in actions.split():
                await gate.act(action)
            assert gate.describe() == expected, step
        tasks.cancel_scope.cancel()


async def test_quiet_begins_when_the_last_compile_has_its_worker() -> None:
    """Until then nothing could be paused."""
    gate, worker = QuietGate(), PausableWorker()
    async with anyio.create_task_group() as tasks:
        async with gate.hold_for_compile() as gate_pass:
            is_quiet = anyio.Event()

            async def find_quiet() -> None:
                async with gate.hold_quiet():
                    assert worker.is_paused
                    is_quiet.set()

            tasks.start_soon(find_quiet)
            await anyio.lowlevel.checkpoint()
            assert gate.state == "compiling"
            with gate_pass.allow_pause(cast(Worker, worker)), anyio.fail_after(DEADLINE_S):
                await is_quiet.wait()
        assert not worker.is_paused


async def test_the_gate_never_jams() -> None:
    """It is open at the end, however many tasks come, leave and are cancelled."""
    names = [f"{'cqw'[index % 3]}{index}" for index in range(60)]
    async with anyio.create_task_group() as tasks:
        gate = Gate(tasks)
        for index, name in enumerate(names):
            await gate.act(f"+{name}")
            if index % 4 == 1:
                await gate.act(f"!{names[index // 2]}")
        for name in names:
            await gate.act(f"-{name}")
        assert gate.describe() == "open"


async def test_a_start_that_hangs_delays_a_timing_for_a_while() -> None:
    """A constraint may hang longer than anything may wait."""
    gate = QuietGate(cores=2, patience_s=0.02)
    with gate.hold_for_start(), anyio.fail_after(DEADLINE_S):
        assert await gate.reserve_cores(2) == 2
