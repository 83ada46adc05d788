"""The gate between compiling and deciding."""

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from ktuned.fleet.quiet import QuietGate
from tests.fleet.playground import DEADLINE_S

pytestmark = pytest.mark.anyio


class Holder:
    """A task that holds the gate until the test lets it leave."""

    def __init__(self, gate: QuietGate, *, quiet: bool = False) -> None:
        self._gate = gate
        self._quiet = quiet
        self._leave = anyio.Event()
        self.scope = anyio.CancelScope()
        self.entered = anyio.Event()
        self.left = anyio.Event()

    async def hold_until_left(self) -> None:
        """Enter, wait, leave."""
        with self.scope:
            async with self._gate.hold_quiet() if self._quiet else self._gate.hold_for_compile():
                self.entered.set()
                await self._leave.wait()
        self.left.set()

    def leave_soon(self) -> None:
        """Leave as soon as it has entered."""
        self._leave.set()

    async def leave_and_wait(self) -> None:
        """Leave, and wait until it has left."""
        self.leave_soon()
        await self.left.wait()

    async def cancel_and_wait(self) -> None:
        """Cancel the task, wherever it is."""
        self.scope.cancel()
        await self.left.wait()

    @property
    def is_in(self) -> bool:
        """Return whether it holds the gate now."""
        return self.entered.is_set() and not self.left.is_set()


class Gate:
    """A gate and tasks around it."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        cores: int | None = None,
        on_extra_cores: Callable[[], None] = lambda: None,
    ) -> None:
        self.gate = QuietGate(cores, on_extra_cores=on_extra_cores)
        self._tasks = tasks

    async def add_holder(self, *, quiet: bool = False) -> Holder:
        """Start a new holder; return when every task has run as far as it can."""
        holder = Holder(self.gate, quiet=quiet)
        self._tasks.start_soon(holder.hold_until_left)
        await run_until_blocked()
        return holder


async def run_until_blocked() -> None:
    """Let every task run until it waits for another one."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


async def test_any_number_may_compile() -> None:
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks)
        assert gate_tasks.gate.state == "open"
        compiles = [await gate_tasks.add_holder() for _ in range(3)]
        assert all(holder.is_in for holder in compiles)
        assert gate_tasks.gate.state == "compiling"
        for holder in compiles:
            await holder.leave_and_wait()
        assert gate_tasks.gate.state == "open"


async def test_no_compile_runs_in_a_quiet_window() -> None:
    """Quiet begins after the last compilation; later compilations begin after it."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks)
        first, second = await gate_tasks.add_holder(), await gate_tasks.add_holder()
        quiet = await gate_tasks.add_holder(quiet=True)
        late = await gate_tasks.add_holder()
        assert [quiet.is_in, late.is_in] == [False, False]
        await first.leave_and_wait()
        await run_until_blocked()
        assert [quiet.is_in, late.is_in] == [False, False]
        await second.leave_and_wait()
        await run_until_blocked()
        assert [quiet.is_in, late.is_in] == [True, False]
        assert gate_tasks.gate.state == "quiet"
        await quiet.leave_and_wait()
        await run_until_blocked()
        assert late.is_in
        await late.leave_and_wait()


async def test_one_quiet_window_at_a_time() -> None:
    """Two deciding jobs do not disturb each other, and compilations wait for both."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks)
        first, second = await gate_tasks.add_holder(quiet=True), await gate_tasks.add_holder(quiet=True)
        late = await gate_tasks.add_holder()
        assert [first.is_in, second.is_in, late.is_in] == [True, False, False]
        await first.leave_and_wait()
        await run_until_blocked()
        assert [second.is_in, late.is_in] == [True, False]
        await second.leave_and_wait()
        await run_until_blocked()
        assert late.is_in
        await late.leave_and_wait()


async def test_giving_up_the_wait_for_quiet_lets_compiles_begin() -> None:
    """A waiting compilation begins at once, not when another one ends."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks)
        running = await gate_tasks.add_holder()
        quiet = await gate_tasks.add_holder(quiet=True)
        late = await gate_tasks.add_holder()
        await quiet.cancel_and_wait()
        await run_until_blocked()
        assert [running.is_in, late.is_in] == [True, True]
        for holder in (running, late):
            await holder.leave_and_wait()


@pytest.mark.parametrize("quiet", [True, False])
async def test_a_cancelled_holder_frees_the_gate(quiet: bool) -> None:
    """The gate is then open for either kind."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks)
        holder = await gate_tasks.add_holder(quiet=quiet)
        waiting = await gate_tasks.add_holder(quiet=True)
        await holder.cancel_and_wait()
        await run_until_blocked()
        assert waiting.is_in
        await waiting.leave_and_wait()
        assert gate_tasks.gate.state == "open"


async def test_a_compile_that_gives_up_waiting_is_forgotten() -> None:
    """It neither begins later nor prevents quiet."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks)
        quiet = await gate_tasks.add_holder(quiet=True)
        late = await gate_tasks.add_holder()
        await late.cancel_and_wait()
        await quiet.leave_and_wait()
        assert not late.entered.is_set()
        assert gate_tasks.gate.state == "open"
        again = await gate_tasks.add_holder(quiet=True)
        assert again.is_in
        await again.leave_and_wait()


class CoreUser:
    """A task that reserves cores at the gate; ``cores`` is what it holds."""

    def __init__(self, gate: QuietGate, wanted: int) -> None:
        self._gate = gate
        self._wanted = wanted
        self.cores = 0

    async def reserve_cores(self) -> None:
        """Wait for the cores and hold them."""
        self.cores = await self._gate.reserve_cores(self._wanted)

    async def release_cores(self) -> None:
        """Release the cores and let every task run."""
        self._gate.release_cores(self.cores)
        self.cores = 0
        await run_until_blocked()


async def reserve_in_task(tasks: anyio.abc.TaskGroup, gate: QuietGate, wanted: int) -> CoreUser:
    """Start a task that reserves this many cores."""
    core_user = CoreUser(gate, wanted)
    tasks.start_soon(core_user.reserve_cores)
    await run_until_blocked()
    return core_user


async def test_a_timing_on_all_cores_is_alone() -> None:
    """It begins after the last compilation and the last start of a worker; later compilations wait for its end."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks, cores=2)
        compiled = await gate_tasks.add_holder()
        with gate_tasks.gate.hold_for_start():
            all_cores = await reserve_in_task(tasks, gate_tasks.gate, 2)
            late = await gate_tasks.add_holder()
            assert (all_cores.cores, late.is_in) == (0, False)
            await compiled.leave_and_wait()
            await run_until_blocked()
            assert all_cores.cores == 0
        await run_until_blocked()
        assert (all_cores.cores, late.is_in, gate_tasks.gate.state) == (2, False, "timing")
        await all_cores.release_cores()
        assert late.is_in
        await late.leave_and_wait()


async def test_compiles_keep_to_the_cores_that_a_timing_leaves() -> None:
    """Running ones are moved at once; new ones begin only if cores are left."""
    widths: list[int] = []
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks, cores=4, on_extra_cores=lambda: widths.append(gate_tasks.gate.extra_cores))
        running = [await gate_tasks.add_holder() for _ in range(3)]
        all_cores = await reserve_in_task(tasks, gate_tasks.gate, 3)
        late = await gate_tasks.add_holder()
        assert (all_cores.cores, widths, late.is_in) == (3, [2], False)
        for holder in running:
            await holder.leave_and_wait()
        await run_until_blocked()
        later = await gate_tasks.add_holder()
        assert [late.is_in, later.is_in] == [True, False]
        await all_cores.release_cores()
        assert (later.is_in, widths) == (True, [2, 0])
        for holder in (late, later):
            await holder.leave_and_wait()


async def test_a_timing_on_one_core_waits_for_no_compile() -> None:
    """Compilations avoid its lane's core; it only waits for a timing on all cores."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks, cores=2)
        compiled = await gate_tasks.add_holder()
        one_core = await reserve_in_task(tasks, gate_tasks.gate, 1)
        other = await reserve_in_task(tasks, gate_tasks.gate, 1)
        assert (one_core.cores, other.cores) == (1, 1)
        all_cores = await reserve_in_task(tasks, gate_tasks.gate, 9)
        await compiled.leave_and_wait()
        await one_core.release_cores()
        assert all_cores.cores == 0
        await other.release_cores()
        assert all_cores.cores == 2
        third = await reserve_in_task(tasks, gate_tasks.gate, 1)
        assert third.cores == 0
        await all_cores.release_cores()
        assert third.cores == 1
        await third.release_cores()


async def test_a_strategy_keeps_off_a_timing_on_all_cores() -> None:
    """It runs before or after. What a person waits for is only delayed a moment, and finalists on a GPU delay
    nothing.
    """
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks, cores=2)
        async with gate_tasks.gate.hold_for_computing():
            all_cores = await reserve_in_task(tasks, gate_tasks.gate, 2)
            assert all_cores.cores == 0
        await run_until_blocked()
        assert all_cores.cores == 2
        proposed = anyio.Event()

        async def propose() -> None:
            async with gate_tasks.gate.hold_for_computing():
                proposed.set()

        tasks.start_soon(propose)
        await run_until_blocked()
        assert not proposed.is_set()
        async with gate_tasks.gate.hold_for_computing(patience_s=0.0):
            pass
        await all_cores.release_cores()
        assert proposed.is_set()
        async with gate_tasks.gate.hold_quiet(), gate_tasks.gate.hold_for_computing():
            pass


async def test_a_start_that_hangs_delays_a_timing_for_a_while() -> None:
    """A constraint may hang longer than anything may wait."""
    gate = QuietGate(cores=2, patience_s=0.02)
    with gate.hold_for_start(), anyio.fail_after(DEADLINE_S):
        assert await gate.reserve_cores(2) == 2
        gate.release_cores(2)


async def test_finalists_on_many_cores_need_no_second_quiet() -> None:
    """A holder of quiet may reserve cores, and a job that waits for quiet delays no timing: neither waits for the
    other.
    """
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks, cores=2)
        compiled = await gate_tasks.add_holder()
        quiet = await gate_tasks.add_holder(quiet=True)
        all_cores = await reserve_in_task(tasks, gate_tasks.gate, 2)
        await compiled.leave_and_wait()
        await run_until_blocked()
        assert (quiet.is_in, all_cores.cores) == (True, 2)
        await all_cores.release_cores()
        await quiet.leave_and_wait()


async def test_a_timing_that_gives_up_waiting_holds_nothing_back() -> None:
    """A compilation that waited behind it begins at once."""
    async with anyio.create_task_group() as tasks:
        gate_tasks = Gate(tasks, cores=2)
        running = await gate_tasks.add_holder()
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_when_settled, scope)
            await gate_tasks.gate.reserve_cores(2)
        late = await gate_tasks.add_holder()
        assert late.is_in
        for holder in (running, late):
            await holder.leave_and_wait()


async def _cancel_when_settled(scope: anyio.CancelScope) -> None:
    await run_until_blocked()
    scope.cancel()


async def test_the_gate_never_jams() -> None:
    """The gate is open at the end, however many tasks come, leave and are cancelled."""
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            gate_tasks = Gate(tasks)
            holders = [Holder(gate_tasks.gate, quiet=index % 3 == 0) for index in range(60)]
            for index, holder in enumerate(holders):
                tasks.start_soon(holder.hold_until_left)
                if index % 4 == 1:
                    holders[index // 2].scope.cancel()
                await anyio.lowlevel.checkpoint()
            for holder in holders:
                holder.leave_soon()
        assert gate_tasks.gate.state == "open"
