"""The fleet: workers are reused, replaced by a spare, and ended; none outlives the daemon."""

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
from tests.fleet.playground import (
    BRIEF_S,
    CHILDREN,
    DEADLINE_S,
    DEADLINES,
    Playground,
    is_running,
    wait_until,
    wait_until_gone,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


def get_states(fleet: Fleet) -> dict[int, str]:
    """Return each worker's state by its process id."""
    return {entry.pid: entry.state for entry in fleet.describe_workers()}


async def lend_and_get_pid(fleet: Fleet, role: Role, environment: Environment) -> int:
    """Lend a worker, send it a request, give it back; return its process id."""
    async with fleet.lend_worker(role, environment) as worker:
        await worker.send_request(Playground(Path(environment.cwd)).write_and_request(""), DEADLINES)
        assert get_states(fleet)[worker.pid] == "busy"
        return worker.pid


async def test_a_worker_is_reused_by_its_own_kind(run_fleet: RunFleet, environment: Environment) -> None:
    """Another role or environment gets another worker."""
    async with run_fleet() as fleet:
        pid = await lend_and_get_pid(fleet, Role.INSPECT, environment)
        assert await lend_and_get_pid(fleet, Role.INSPECT, environment) == pid
        assert await lend_and_get_pid(fleet, Role.COMPILE, environment) != pid
        assert await lend_and_get_pid(fleet, Role.INSPECT, replace(environment, env=(("A", "1"),))) != pid
        described = {entry.pid: entry for entry in fleet.describe_workers()}
        assert len(described) == 3
        worker_info = described[pid]
        assert (worker_info.role, worker_info.state, worker_info.requests) == ("inspect", "idle", 2)


async def test_two_callers_at_once_get_two_workers(run_fleet: RunFleet, environment: Environment) -> None:
    async with (
        run_fleet() as fleet,
        fleet.lend_worker(Role.INSPECT, environment) as first,
        fleet.lend_worker(Role.INSPECT, environment) as second,
    ):
        assert first.pid != second.pid


async def test_a_worker_that_misbehaved_is_not_lent_again(run_fleet: RunFleet, environment: Environment) -> None:
    """After an exception its state is unknown, and a dead worker cannot be lent: the next one is new."""
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
        assert await lend_and_get_pid(fleet, Role.INSPECT, environment) not in (doubtful.pid, killed.pid, idle.pid)
        await wait_until(lambda: len(fleet.describe_workers()) == 1)


async def test_a_spare_is_lent_without_a_start(run_fleet: RunFleet, environment: Environment) -> None:
    """Its backend is already imported."""
    async with run_fleet() as fleet:
        for _ in range(3):
            fleet.prepare_spares(Role.BENCH, environment, "fake")
        await wait_until(lambda: "idle" in get_states(fleet).values())
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        (spare,) = get_states(fleet)
        async with fleet.lend_worker(Role.BENCH, environment) as worker:
            assert (worker.pid, worker.requests) == (spare, 1)


async def test_a_dead_spare_is_replaced(run_fleet: RunFleet, environment: Environment) -> None:
    """A spare may die while it is idle, for example out of memory."""
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        await wait_until(lambda: "idle" in get_states(fleet).values())
        (spare,) = get_states(fleet)
        os.kill(spare, signal.SIGKILL)
        await wait_until(lambda: not get_states(fleet))
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        await wait_until(lambda: "idle" in get_states(fleet).values())
        assert spare not in get_states(fleet)


async def test_a_spare_that_cannot_be_made_disturbs_nobody(run_fleet: RunFleet, environment: Environment) -> None:
    """The backend may fail to import, or the interpreter may be missing."""
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, replace(environment, python="/no/such/python"), "fake")
        fleet.prepare_spares(Role.BENCH, environment, "no_such_backend")
        assert await lend_and_get_pid(fleet, Role.INSPECT, environment)
        await wait_until(lambda: list(get_states(fleet).values()) == ["idle"])


async def test_a_worker_that_idles_too_long_ends(run_fleet: RunFleet, environment: Environment) -> None:
    """A lent worker stays."""
    async with run_fleet(limits=FleetLimits(idle_s=0.04)) as fleet, fleet.lend_worker(Role.BENCH, environment) as kept:
        await lend_and_get_pid(fleet, Role.BENCH, environment)
        await wait_until(lambda: get_states(fleet) == {kept.pid: "busy"})


async def test_compile_workers_stand_aside(run_fleet: RunFleet, environment: Environment) -> None:
    """They are niced and keep to their cores, with all their children; other workers are not."""
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
    """New compilers leave one core free for each further lane, down to one core."""
    cores = sorted(os.sched_getaffinity(0))
    async with run_fleet(compile_cores=frozenset(cores)) as fleet, AsyncExitStack() as lent:
        for lanes in (0, 1, 2, 999):
            fleet.leave_cores(lanes)
            worker = await lent.enter_async_context(fleet.lend_worker(Role.COMPILE, environment))
            remaining_cores = cores[min(max(0, lanes - 1), len(cores) - 1) :]
            assert psutil.Process(worker.pid).cpu_affinity() == remaining_cores


async def test_compile_slots_follow_the_lanes_unless_they_were_chosen(
    run_fleet: RunFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default all cores but one for each lane are slots; a number in the settings overrides it."""
    monkeypatch.setattr(cpu, "cores", lambda: 8)
    async with run_fleet(compile_slots=None) as fleet:
        fleet.leave_cores(3)
        assert fleet.compile_slots.total_tokens == 5
        fleet.leave_cores(0)
        assert fleet.compile_slots.total_tokens == 7
    async with run_fleet(compile_slots=4) as fleet:
        fleet.leave_cores(3)
        assert fleet.compile_slots.total_tokens == 4


async def test_compilers_keep_to_the_cores_that_the_daemon_has_left(
    run_fleet: RunFleet, environment: Environment
) -> None:
    """A worker that starts after the daemon's affinity was narrowed does not use the earlier cores."""
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
    """At the end of the block, lent and idle workers, their detached children and their scratch are gone."""
    pids: list[int] = []

    async def use_workers(fleet: Fleet) -> None:
        await lend_and_get_pid(fleet, Role.COMPILE, environment)
        worker = await fleet.acquire_worker(Role.INSPECT, environment)
        await worker.send_request(playground.write_and_request(CHILDREN), DEADLINES)
        pids.extend([*get_states(fleet), *await playground.read_child_pids()])
        assert all(is_running(pid) for pid in pids)
        if fails:
            raise RuntimeError("the daemon fails")

    if fails:
        with pytest.raises(ExceptionGroup) as caught:
            async with run_fleet() as fleet:
                await use_workers(fleet)
        assert caught.group_contains(RuntimeError, match="the daemon fails")
    else:
        async with run_fleet() as fleet:
            await use_workers(fleet)
    assert len(pids) == 4
    assert not any(is_running(pid) for pid in pids)
    assert not list((tmp_path / "tmp").iterdir())


async def test_a_spare_under_way_does_not_survive_the_fleet(run_fleet: RunFleet, environment: Environment) -> None:
    """A worker that is just being started leaves nothing behind."""
    async with run_fleet() as fleet:
        fleet.prepare_spares(Role.BENCH, environment, "fake")
        await wait_until(lambda: get_states(fleet))
        (pid,) = get_states(fleet)
    assert not is_running(pid)


async def test_leftovers_of_a_killed_daemon_are_cleared(run_fleet: RunFleet, tmp_path: Path) -> None:
    """The next daemon's start removes the scratch of a killed one."""
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
        ("kill -9 $$", WorkerError, r"cannot run a worker: .* SIGKILL during spawn\nsee Linux's log"),
        (
            "exec sleep 1000",
            WorkerError,
            r"did not start a worker within 0\.2 s\ncheck whether the machine is overloaded",
        ),
    ],
    ids=["no-ktuned", "killed", "silent"],
)
async def test_an_interpreter_of_no_use_is_one_line(
    run_fleet: RunFleet, environment: Environment, tmp_path: Path, script: str, error: type[WorkerError], message: str
) -> None:
    """It may lack ktuned, be killed or never answer; nothing of it stays in the fleet."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    async with run_fleet(spawn_s=BRIEF_S if "within" in message else DEADLINE_S) as fleet:
        with pytest.raises(error, match=message):
            await fleet.acquire_worker(Role.INSPECT, replace(environment, python=str(python)))
        await wait_until(lambda: not fleet.describe_workers())


async def test_the_warden_kills_what_a_killed_daemon_left(tmp_path: Path) -> None:
    """After kill -9 of the daemon, its worker, the worker's children and the scratch are removed."""
    directory = tmp_path.resolve()
    command = [sys.executable, "-m", "tests.fleet.owner", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL) as owner:  # noqa: ASYNC220
        try:
            await wait_until((directory / "all").exists)
            helpers = {child.pid for child in psutil.Process(owner.pid).children(recursive=True)}
        finally:
            owner.kill()
    pids = {int(word) for word in (directory / "all").read_text().split()}
    assert len(pids) == 3
    assert len(helpers - pids) == 1, "besides the worker and its children there is the warden"
    await wait_until_gone(pids | helpers)
    assert not list((directory / "tmp").iterdir())


async def test_a_warden_that_was_killed_is_replaced(run_fleet: RunFleet) -> None:
    """The warden ends the workers of a killed daemon."""

    def list_wardens() -> set[int]:
        children = psutil.Process().children()
        return {child.pid for child in children if is_running(child.pid) and "warden.py" in " ".join(child.cmdline())}

    async with run_fleet(warden_s=0.02):
        (first,) = list_wardens()
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: list_wardens() - {first})
    assert not list_wardens()
