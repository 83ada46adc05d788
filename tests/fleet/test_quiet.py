"""The gate between compiling and deciding."""

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from ktuned.fleet.quiet import QuietGate
from tests.fleet.playing import DEADLINE_S

pytestmark = pytest.mark.anyio


class Holder:
    """A task that holds the gate until it is asked to leave, and says where it stands."""

    def __init__(self, gate: QuietGate, *, quiet: bool = False) -> None:
        self._gate = gate
        self._quiet = quiet
        self._leave = anyio.Event()
        self.scope = anyio.CancelScope()
        self.entered = anyio.Event()
        self.left = anyio.Event()

    async def hold(self) -> None:
        """Enter, wait to be reported, leave."""
        with self.scope:
            async with self._gate.hold_quiet() if self._quiet else self._gate.hold_for_compile():
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

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        cores: int | None = None,
        on_extra_cores: Callable[[], None] = lambda: None,
    ) -> None:
        self.gate = QuietGate(cores, on_extra_cores=on_extra_cores)
        self._tasks = tasks

    async def comes(self, *, quiet: bool = False) -> Holder:
        """Have a new holder come to the gate; return when everyone has got as far as they can."""
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


async def test_giving_up_the_wait_for_quiet_lets_compiles_begin() -> None:
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
    """Anyone who holds it and is cancelled leaves it open for the next, of either kind."""
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


class Timing:
    """A task that takes cores at the gate; ``cores`` is what it holds."""

    def __init__(self, gate: QuietGate, wanted: int) -> None:
        self._gate = gate
        self._wanted = wanted
        self.cores = 0

    async def take(self) -> None:
        """Wait for the cores, and hold them."""
        self.cores = await self._gate.reserve_cores(self._wanted)

    async def give(self) -> None:
        """Give them back, and let everyone go on."""
        self._gate.release_cores(self.cores)
        self.cores = 0
        await settle()


async def timing(tasks: anyio.abc.TaskGroup, gate: QuietGate, wanted: int) -> Timing:
    """Have a trial come to the gate that needs so many cores."""
    one = Timing(gate, wanted)
    tasks.start_soon(one.take)
    await settle()
    return one


async def test_a_timing_on_all_cores_is_alone() -> None:
    """It begins when the last compile, and the last start of a worker, is over; compiles that come wait for its end."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks, cores=2)
        compiled = await scene.comes()
        with scene.gate.hold_for_start():
            wide = await timing(tasks, scene.gate, 2)
            late = await scene.comes()
            assert (wide.cores, late.is_in) == (0, False)
            await compiled.leave()
            await settle()
            assert wide.cores == 0
        await settle()
        assert (wide.cores, late.is_in, scene.gate.state) == (2, False, "timing")
        await wide.give()
        assert late.is_in
        await late.leave()


async def test_compiles_keep_to_the_cores_that_a_timing_leaves() -> None:
    """Those that run are moved to them at once; new ones begin only as far as there are some."""
    widths: list[int] = []
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks, cores=4, on_extra_cores=lambda: widths.append(scene.gate.extra_cores))
        running = [await scene.comes() for _ in range(3)]
        wide = await timing(tasks, scene.gate, 3)
        late = await scene.comes()
        assert (wide.cores, widths, late.is_in) == (3, [2], False)
        for holder in running:
            await holder.leave()
        await settle()
        later = await scene.comes()
        assert [late.is_in, later.is_in] == [True, False]
        await wide.give()
        assert (later.is_in, widths) == (True, [2, 0])
        for holder in (late, later):
            await holder.leave()


async def test_a_timing_on_one_core_waits_for_no_compile() -> None:
    """Compiles are kept off its lane's core; only one on all cores is in its way."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks, cores=2)
        compiled = await scene.comes()
        narrow = await timing(tasks, scene.gate, 1)
        other = await timing(tasks, scene.gate, 1)
        assert (narrow.cores, other.cores) == (1, 1)
        wide = await timing(tasks, scene.gate, 9)
        await compiled.leave()
        await narrow.give()
        assert wide.cores == 0
        await other.give()
        assert wide.cores == 2
        third = await timing(tasks, scene.gate, 1)
        assert third.cores == 0
        await wide.give()
        assert third.cores == 1
        await third.give()


async def test_a_strategy_keeps_off_a_timing_on_all_cores() -> None:
    """It proposes before or after; what a person waits for loses patience; finalists on a GPU hold nothing up."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks, cores=2)
        async with scene.gate.hold_for_computing():
            wide = await timing(tasks, scene.gate, 2)
            assert wide.cores == 0
        await settle()
        assert wide.cores == 2
        proposed = anyio.Event()

        async def propose() -> None:
            async with scene.gate.hold_for_computing():
                proposed.set()

        tasks.start_soon(propose)
        await settle()
        assert not proposed.is_set()
        async with scene.gate.hold_for_computing(patience_s=0.0):
            pass
        await wide.give()
        assert proposed.is_set()
        async with scene.gate.hold_quiet(), scene.gate.hold_for_computing():
            pass


async def test_a_start_that_hangs_delays_a_timing_for_a_while() -> None:
    """A constraint may hang for longer than anything else may wait."""
    gate = QuietGate(cores=2, patience_s=0.02)
    with gate.hold_for_start(), anyio.fail_after(DEADLINE_S):
        assert await gate.reserve_cores(2) == 2
        gate.release_cores(2)


async def test_finalists_on_many_cores_need_no_second_quiet() -> None:
    """Who has quiet may take cores, and who waits for quiet holds back no timing: neither waits for the other."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks, cores=2)
        compiled = await scene.comes()
        quiet = await scene.comes(quiet=True)
        wide = await timing(tasks, scene.gate, 2)
        await compiled.leave()
        await settle()
        assert (quiet.is_in, wide.cores) == (True, 2)
        await wide.give()
        await quiet.leave()


async def test_a_timing_that_gives_up_waiting_holds_nothing_back() -> None:
    """A compile that waited behind it begins at once."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks, cores=2)
        running = await scene.comes()
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_when_settled, scope)
            await scene.gate.reserve_cores(2)
        late = await scene.comes()
        assert late.is_in
        for holder in (running, late):
            await holder.leave()


async def _cancel_when_settled(scope: anyio.CancelScope) -> None:
    await settle()
    scope.cancel()


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
