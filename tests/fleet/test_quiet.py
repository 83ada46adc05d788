"""The gate between compiling and deciding."""

import anyio
import anyio.lowlevel
import pytest

from ktuned.fleet.quiet import QuietGate
from tests.fleet.playing import DEADLINE_S

pytestmark = pytest.mark.anyio


class Holder:
    """A task that holds the gate until it is told to leave, and says where it stands."""

    def __init__(self, gate: QuietGate, *, quiet: bool = False) -> None:
        self._gate = gate
        self._quiet = quiet
        self._leave = anyio.Event()
        self.scope = anyio.CancelScope()
        self.entered = anyio.Event()
        self.left = anyio.Event()

    async def hold(self) -> None:
        """Enter, wait to be told, leave."""
        with self.scope:
            async with self._gate.quiet() if self._quiet else self._gate.compiling():
                self.entered.set()
                await self._leave.wait()
        self.left.set()

    def leave_soon(self) -> None:
        """Leave as soon as it has been in."""
        self._leave.set()

    async def leave(self) -> None:
        """Leave, and be gone."""
        self.leave_soon()
        await self.left.wait()

    async def cancel(self) -> None:
        """Give up, wherever it stands."""
        self.scope.cancel()
        await self.left.wait()

    @property
    def is_in(self) -> bool:
        """Whether it holds the gate now."""
        return self.entered.is_set() and not self.left.is_set()


class Scene:
    """A gate and tasks around it."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.gate = QuietGate()
        self._tasks = tasks

    async def comes(self, *, quiet: bool = False) -> Holder:
        """Have a new holder come to the gate; return when everybody has got as far as they can."""
        holder = Holder(self.gate, quiet=quiet)
        self._tasks.start_soon(holder.hold)
        await settle()
        return holder


async def settle() -> None:
    """Let every task run until it waits for another one: nothing here waits for anything else."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


async def test_any_number_may_compile() -> None:
    """Compiles do not wait for each other."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)
        assert scene.gate.state == "open"
        compiles = [await scene.comes() for _ in range(3)]
        assert all(holder.is_in for holder in compiles)
        assert scene.gate.state == "compiling"
        for holder in compiles:
            await holder.leave()
        assert scene.gate.state == "open"


async def test_no_compile_runs_in_a_quiet_window() -> None:
    """Quiet begins when the last compile is over; compiles that come meanwhile begin when it ends."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)
        first, second = await scene.comes(), await scene.comes()
        quiet = await scene.comes(quiet=True)
        late = await scene.comes()
        assert [quiet.is_in, late.is_in] == [False, False]
        await first.leave()
        await settle()
        assert [quiet.is_in, late.is_in] == [False, False]
        await second.leave()
        await settle()
        assert [quiet.is_in, late.is_in] == [True, False]
        assert scene.gate.state == "quiet"
        await quiet.leave()
        await settle()
        assert late.is_in
        await late.leave()


async def test_one_quiet_window_at_a_time() -> None:
    """Two jobs that decide do not disturb each other, and compiles wait for both."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)
        first, second = await scene.comes(quiet=True), await scene.comes(quiet=True)
        late = await scene.comes()
        assert [first.is_in, second.is_in, late.is_in] == [True, False, False]
        await first.leave()
        await settle()
        assert [second.is_in, late.is_in] == [True, False]
        await second.leave()
        await settle()
        assert late.is_in
        await late.leave()


async def test_who_gives_up_waiting_for_quiet_holds_nobody_back() -> None:
    """A compile that waited for it begins at once, not when some other compile happens to end."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)
        running = await scene.comes()
        quiet = await scene.comes(quiet=True)
        late = await scene.comes()
        await quiet.cancel()
        await settle()
        assert [running.is_in, late.is_in] == [True, True]
        for holder in (running, late):
            await holder.leave()


@pytest.mark.parametrize("quiet", [True, False])
async def test_a_cancelled_holder_frees_the_gate(quiet: bool) -> None:
    """Whoever holds it and is cancelled leaves it open for the next, of either kind."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)
        holder = await scene.comes(quiet=quiet)
        waiting = await scene.comes(quiet=True)
        await holder.cancel()
        await settle()
        assert waiting.is_in
        await waiting.leave()
        assert scene.gate.state == "open"


async def test_a_compile_that_gives_up_waiting_is_forgotten() -> None:
    """It neither begins later nor keeps quiet from being given."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)
        quiet = await scene.comes(quiet=True)
        late = await scene.comes()
        await late.cancel()
        await quiet.leave()
        assert not late.entered.is_set()
        assert scene.gate.state == "open"
        again = await scene.comes(quiet=True)
        assert again.is_in
        await again.leave()


async def test_the_gate_never_jams() -> None:
    """However many come, leave and give up at once, the last one out leaves it open."""
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            scene = Scene(tasks)
            holders = [Holder(scene.gate, quiet=index % 3 == 0) for index in range(60)]
            for index, holder in enumerate(holders):
                tasks.start_soon(holder.hold)
                if index % 4 == 1:
                    holders[index // 2].scope.cancel()
                await anyio.lowlevel.checkpoint()
            for holder in holders:
                holder.leave_soon()
        assert scene.gate.state == "open"
