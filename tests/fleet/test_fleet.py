"""The fleet: workers are reused, replaced by a spare, let go, and none outlives the daemon."""

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from ktuned.backends import cpu
from ktuned.fleet.executor import Environment
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import FleetLimits
from ktuned.fleet.local_executor import COMPILE_NICENESS
from ktuned.model.errors import WorkerError
from ktuned.model.keys import Role
from tests.fleet.conftest import RunFleet
from tests.fleet.playing import (
    BRIEF_S,
    CHILDREN,
    DEADLINE_S,
    DEADLINES,
    Playground,
    gone,
    is_running,
    until,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


def states(fleet: Fleet) -> dict[int, str]:
    """Return each worker's state by its process id."""
    return {entry.pid: entry.state for entry in fleet.describe_workers()}


async def lent_pid(fleet: Fleet, role: Role, environment: Environment) -> int:
    """Lend a worker, have it answer, give it back; return which it was."""
    async with fleet.lend_worker(role, environment) as worker:
        await worker.send_request(Playground(Path(environment.cwd)).request(""), DEADLINES)
        assert states(fleet)[worker.pid] == "busy"
        return worker.pid


async def test_a_worker_is_reused_by_its_own_kind(run_fleet: RunFleet, environment: Environment) -> None:
    """The same role and environment get the idle worker; another role, or another environment, never does."""
    async with run_fleet() as fleet:
        first = await lent_pid(fleet, Role.INSPECT, environment)
        assert await lent_pid(fleet, Role.INSPECT, environment) == first
        assert await lent_pid(fleet, Role.COMPILE, environment) != first
        assert await lent_pid(fleet, Role.INSPECT, replace(environment, env=(("A", "1"),))) != first
        described = {entry.pid: entry for entry in fleet.describe_workers()}
        assert len(described) == 3
        known = described[first]
        assert (known.role, known.state, known.requests) == ("inspect", "idle", 2)


async def test_two_callers_at_once_get_two_workers(run_fleet: RunFleet, environment: Environment) -> None:
    """A worker that is lent is no one else's."""
    async with (
        run_fleet() as fleet,
        fleet.lend_worker(Role.INSPECT, environment) as one,
        fleet.lend_worker(Role.INSPECT, environment) as other,
    ):
        assert one.pid != other.pid


async def test_a_worker_that_misbehaved_is_not_lent_again(run_fleet: RunFleet, environment: Environment) -> None:
    """After an exception its state cannot be known; after its death there is none: the next one is new."""
    async with run_fleet() as fleet:
        with pytest.raises(RuntimeError, match="doubt"):
            async with fleet.lend_worker(Role.INSPECT, environment) as doubtful:
                raise RuntimeError("doubt")
        async with fleet.lend_worker(Role.INSPECT, environment) as killed:
            assert killed.pid != doubtful.pid
            killed.kill()
        async with fleet.lend_worker(Role.INSPECT, environment) as idle:
            pass
        os.kill(idle.pid, signal.SIGKILL)
        await idle.gone.wait()
        assert await lent_pid(fleet, Role.INSPECT, environment) not in (doubtful.pid, killed.pid, idle.pid)
        await until(lambda: len(fleet.describe_workers()) == 1)


async def test_a_spare_is_lent_without_a_start(run_fleet: RunFleet, environment: Environment) -> None:
    """It stands ready with its backend imported; anyone who asks next gets it without a wait for a start."""
    async with run_fleet() as fleet:
        for _ in range(3):
            fleet.prepare_spares(Role.BENCH, environment, "fake")
        await until(lambda: "idle" in states(fleet).values())
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        (spare,) = states(fleet)
        async with fleet.lend_worker(Role.BENCH, environment) as worker:
            assert (worker.pid, worker.requests) == (spare, 1)


async def test_a_dead_spare_is_replaced(run_fleet: RunFleet, environment: Environment) -> None:
    """A spare that died while it idled (out of memory) does not count as one."""
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        await until(lambda: "idle" in states(fleet).values())
        (spare,) = states(fleet)
        os.kill(spare, signal.SIGKILL)
        await until(lambda: not states(fleet))
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        await until(lambda: "idle" in states(fleet).values())
        assert spare not in states(fleet)


async def test_a_spare_that_cannot_be_made_disturbs_nobody(run_fleet: RunFleet, environment: Environment) -> None:
    """A backend that cannot be imported, or an interpreter that is missing: the fleet goes on."""
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, replace(environment, python="/no/such/python"), "fake")
        fleet.prepare_spares(Role.BENCH, environment, "no_such_backend")
        assert await lent_pid(fleet, Role.INSPECT, environment)
        await until(lambda: list(states(fleet).values()) == ["idle"])


async def test_a_worker_that_idles_too_long_ends(run_fleet: RunFleet, environment: Environment) -> None:
    """A worker that has been idle for a while is killed and forgotten; one that is lent stays."""
    async with run_fleet(limits=FleetLimits(idle_s=0.04)) as fleet, fleet.lend_worker(Role.BENCH, environment) as kept:
        await lent_pid(fleet, Role.BENCH, environment)
        await until(lambda: states(fleet) == {kept.pid: "busy"})


async def test_compile_workers_stand_aside(run_fleet: RunFleet, environment: Environment) -> None:
    """They are niced and keep to their cores, with all that they start; the others are not."""
    core = min(os.sched_getaffinity(0))
    async with run_fleet(compile_cores=frozenset({core})) as fleet:
        async with fleet.lend_worker(Role.COMPILE, environment) as worker:
            process = psutil.Process(worker.pid)
            assert (process.nice(), process.cpu_affinity()) == (COMPILE_NICENESS, [core])
        async with fleet.lend_worker(Role.BENCH, environment) as worker:
            process = psutil.Process(worker.pid)
            assert process.nice() == psutil.Process().nice()
            assert process.cpu_affinity() == psutil.Process().cpu_affinity()


async def test_each_lane_has_a_core_to_itself(run_fleet: RunFleet, environment: Environment) -> None:
    """Compilers that start keep off one more core for each further lane, down to the last one."""
    cores = sorted(os.sched_getaffinity(0))
    async with run_fleet(compile_cores=frozenset(cores)) as fleet, AsyncExitStack() as lent:
        for lanes in (0, 1, 2, 999):
            fleet.leave_cores(lanes)
            worker = await lent.enter_async_context(fleet.lend_worker(Role.COMPILE, environment))
            left = cores[min(max(0, lanes - 1), len(cores) - 1) :]
            assert psutil.Process(worker.pid).cpu_affinity() == left


async def test_compile_slots_follow_the_lanes_unless_they_were_chosen(
    run_fleet: RunFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number in the settings, all cores but one for each lane; with one, that many."""
    monkeypatch.setattr(cpu, "cores", lambda: 8)
    memory_limits = (2**30, 2**30)
    async with run_fleet(compile_slots=None) as fleet:
        fleet.leave_cores(3)
        assert fleet.compile_slots.total_tokens == 5
        fleet.apply_limits(None, memory_limits)
        assert fleet.compile_slots.total_tokens == 5
        fleet.leave_cores(0)
        assert fleet.compile_slots.total_tokens == 7
        fleet.apply_limits(4, memory_limits)
        assert fleet.compile_slots.total_tokens == 4


async def test_compilers_keep_to_the_cores_that_the_daemon_has_left(
    run_fleet: RunFleet, environment: Environment
) -> None:
    """One that starts after the daemon's affinity was narrowed does not leave that for the cores that it had before."""
    cores = os.sched_getaffinity(0)
    async with run_fleet(compile_cores=frozenset(cores)) as fleet:
        os.sched_setaffinity(0, {max(cores)})
        try:
            fleet.leave_cores(1)
            async with fleet.lend_worker(Role.COMPILE, environment) as worker:
                assert psutil.Process(worker.pid).cpu_affinity() == [max(cores)]
        finally:
            os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
async def test_nothing_survives_the_fleet(
    run_fleet: RunFleet, playground: Playground, environment: Environment, tmp_path: Path, fails: bool
) -> None:
    """When the block is left, lent and idle workers, their detached children and their scratch are gone."""
    pids: list[int] = []

    async def use(fleet: Fleet) -> None:
        await lent_pid(fleet, Role.COMPILE, environment)
        worker = await fleet.acquire_worker(Role.INSPECT, environment)
        await worker.send_request(playground.request(CHILDREN), DEADLINES)
        pids.extend([*states(fleet), *await playground.pids()])
        assert all(is_running(pid) for pid in pids)
        if fails:
            raise RuntimeError("the daemon fails")

    if fails:
        with pytest.raises(ExceptionGroup) as caught:
            async with run_fleet() as fleet:
                await use(fleet)
        assert caught.group_contains(RuntimeError, match="the daemon fails")
    else:
        async with run_fleet() as fleet:
            await use(fleet)
    assert len(pids) == 4
    assert not any(is_running(pid) for pid in pids)
    assert not list((tmp_path / "tmp").iterdir())


async def test_a_spare_under_way_does_not_survive_the_fleet(run_fleet: RunFleet, environment: Environment) -> None:
    """Leaving while a worker is being started leaves nothing behind; the leak check of each test sees to it."""
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        await until(lambda: states(fleet))
        (pid,) = states(fleet)
    assert not is_running(pid)


async def test_leftovers_of_a_killed_daemon_are_cleared(run_fleet: RunFleet, tmp_path: Path) -> None:
    """The scratch that an earlier daemon had no time to remove is removed by the next one's start."""
    leftover = tmp_path / "tmp" / "1234-abcd" / "7" / "large"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"x" * 1000)
    async with run_fleet():
        (own,) = (tmp_path / "tmp").iterdir()
        assert own != tmp_path / "tmp" / "1234-abcd"


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (
            "echo 'No module named ktuned' >&2; exit 1",
            WorkerError,
            r"cannot run a worker: .*: No module named ktuned\ninstall ktuned into that interpreter",
        ),
        ("kill -9 $$", WorkerError, r"cannot run a worker: .* SIGKILL during spawn\nlook in the kernel's log"),
        (
            "exec sleep 1000",
            WorkerError,
            r"did not start a worker within 0\.2 s\nlook whether the machine is overloaded",
        ),
    ],
    ids=["no-ktuned", "killed", "silent"],
)
async def test_an_interpreter_of_no_use_is_one_line(
    run_fleet: RunFleet, environment: Environment, tmp_path: Path, script: str, error: type[WorkerError], message: str
) -> None:
    """One that lacks ktuned, is killed or never speaks is said to; nothing of it is left in the fleet."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    async with run_fleet(spawn_s=BRIEF_S if "within" in message else DEADLINE_S) as fleet:
        with pytest.raises(error, match=message):
            await fleet.acquire_worker(Role.INSPECT, replace(environment, python=str(python)))
        await until(lambda: not fleet.describe_workers())


async def test_the_warden_kills_what_a_killed_daemon_left(tmp_path: Path) -> None:
    """After kill -9 of the daemon its worker, the worker's children (one called setsid) and the scratch go."""
    directory = tmp_path.resolve()
    command = [sys.executable, "-m", "tests.fleet.owner", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL) as owner:  # noqa: ASYNC220
        try:
            await until((directory / "all").exists)
            helpers = {child.pid for child in psutil.Process(owner.pid).children(recursive=True)}
        finally:
            owner.kill()
    pids = {int(word) for word in (directory / "all").read_text().split()}
    assert len(pids) == 3
    assert len(helpers - pids) == 1, "besides the worker and its children there is the warden"
    await gone(pids | helpers)
    assert not list((directory / "tmp").iterdir())


async def test_the_status_describes_each_worker(run_fleet: RunFleet, environment: Environment) -> None:
    """Pid, role, state, place, requests and age."""
    async with run_fleet() as fleet:
        await lent_pid(fleet, Role.INSPECT, environment)
        (entry,) = fleet.describe_workers()
        assert entry.pid > 0
        assert (entry.role, entry.state, entry.host, entry.requests) == ("inspect", "idle", "", 1)
        assert entry.age_s > 0


async def test_a_warden_that_was_killed_is_replaced(run_fleet: RunFleet) -> None:
    """What ends the workers of a killed daemon is there again before long."""

    def wardens() -> set[int]:
        children = psutil.Process().children()
        return {child.pid for child in children if is_running(child.pid) and "warden.py" in " ".join(child.cmdline())}

    async with run_fleet(warden_s=0.02):
        (first,) = wardens()
        os.kill(first, signal.SIGKILL)
        await until(lambda: wardens() - {first})
    assert not wardens()
